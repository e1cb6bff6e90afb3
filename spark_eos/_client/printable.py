"""Texts for terminals and logs: from other machines, made safe; and numbers of things."""

from spark_eos.errors import escaped


def printable(text: str) -> str:
    r"""Escapes the control characters in a text from another machine.

    Example:
        >>> printable("a" + chr(27) + "b")
        'a\\x1bb'
    """
    return escaped(text, keep="")


def counted(number: int, noun: str, after: str = "") -> str:
    """A number of things in words.

    Example:
        >>> counted(1, "record"), counted(2_000, "row"), counted(1, "dead letter")
        ('1 record', '2,000 rows', '1 dead letter')
        >>> counted(2, "source record", "lost")
        '2 source records lost'
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'} {after}".rstrip()
