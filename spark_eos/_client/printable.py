"""Text for terminals and logs: escaped texts from other machines, lists and counts."""

from collections.abc import Iterable

from spark_eos.errors import escaped


def printable(text: str) -> str:
    r"""Escape the control characters in a text from another machine."""
    return escaped(text, keep="")


def listed(names: Iterable[object], most: int = 5) -> str:
    """Return a list of names for a message, at most ``most`` of them."""
    every = [*map(str, names)]
    return ", ".join(every[:most]) + (", ..." if len(every) > most else "")


def counted(number: int, noun: str, after: str = "") -> str:
    """Return a number with its noun, in the singular or plural."""
    return f"{number:,} {noun}{'' if number == 1 else 's'} {after}".rstrip()
