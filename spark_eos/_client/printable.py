"""Texts for terminals and logs: from other machines, made safe; and numbers of things."""

from spark_eos.errors import escaped


def printable(text: str) -> str:
    r"""Escapes the control characters in a text from another machine."""
    return escaped(text, keep="")


def counted(number: int, noun: str, after: str = "") -> str:
    """A number of things in words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'} {after}".rstrip()
