"""Text from other machines, made safe for terminals and logs."""

from spark_eos.errors import escaped


def printable(text: str) -> str:
    r"""Escapes the control characters in a text from another machine.

    Example:
        >>> printable("a" + chr(27) + "b")
        'a\\x1bb'
    """
    return escaped(text, keep="")
