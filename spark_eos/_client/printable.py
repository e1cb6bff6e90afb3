"""Texts for terminals and logs: from other machines, made safe; and numbers of things."""

from collections.abc import Iterable

from spark_eos.errors import escaped


def printable(text: str) -> str:
    r"""Escape the control characters in a text from another machine."""
    return escaped(text, keep="")


def listed(names: Iterable[object], most: int = 5) -> str:
    """Name for a text, at most so many."""
    every = [*map(str, names)]
    return ", ".join(every[:most]) + (", ..." if len(every) > most else "")


def counted(number: int, noun: str, after: str = "") -> str:
    """Return a number of things in words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'} {after}".rstrip()
