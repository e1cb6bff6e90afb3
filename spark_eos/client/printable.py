"""Text that came from elsewhere, made fit for a terminal and a log."""


def printable(text: str) -> str:
    """A text that came from elsewhere, with escapes in the place of control characters."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )
