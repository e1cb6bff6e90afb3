"""Text from other machines, made safe for terminals and logs."""


def printable(text: str) -> str:
    r"""Escapes the control characters in a text from another machine.

    Example:
        >>> printable("a" + chr(27) + "b")
        'a\\x1bb'
    """
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )
