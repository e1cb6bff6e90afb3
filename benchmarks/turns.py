"""Contestants in turns: who runs when, and what their figures say of each other."""

import statistics
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import track


def turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yields the number of a round and who runs in it, not always in the same order.

    Round 0 comes beside the others: it warms up, and its figures are to be thrown away.

    Args:
        names: The contestants.
        rounds: Number of rounds that count.
    """
    console = Console(stderr=True)
    for number in track(range(rounds + 1), "rounds", console=console, transient=True):
        first = number % len(names)
        for name in [*names[first:], *names[:first]]:
            yield number, name


def ratios(figures: Sequence[float], base: Sequence[float]) -> list[float]:
    """Returns each round's figure divided by the base's figure of the same round."""
    return [figure / of_base for figure, of_base in zip(figures, base, strict=True)]


def median_and_range(values: Sequence[float]) -> str:
    """Returns a median with the lowest and the highest value.

    Whatever their distribution, of five values lowest and highest enclose its median with a
    confidence of 94 % (1 - 2 / 2^5).
    """
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
