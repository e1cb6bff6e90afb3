"""Lets contestants take turns, and compares their figures."""

import statistics
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import track


def turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield round numbers and contestants, not in the same order in every round.

    Round 0 comes in addition to the rounds that count: it warms up, and its figures are dropped.

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
    """Return each round's figure divided by the base's figure of the same round."""
    return [figure / of_base for figure, of_base in zip(figures, base, strict=True)]


def median_and_range(values: Sequence[float]) -> str:
    """Return the median with the lowest and highest value.

    The lowest and highest of five values enclose the median of their distribution, whatever it is,
    with a confidence of 94 % (1 - 2 / 2^5).
    """
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
