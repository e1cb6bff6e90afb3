"""How a verification tells how far it is."""

from collections.abc import Callable

Watch = Callable[[str, int, int], None]
"""Called with the current step, how much of it is done, and how much there is to do."""


def silent(_what: str, _done: int, _total: int) -> None:
    """Tells nobody."""


def meter(watch: Watch, what: str, total: int) -> Callable[[int], None]:
    """Begins a step; returns the function to call with how much was done since the last call.

    Example:
        >>> advance = meter(print, "Reading", 3)
        Reading 0 3
        >>> advance(2)
        Reading 2 3
    """
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        watch(what, done, total)

    advance(0)
    return advance
