"""How long each step of a batch takes on the driver."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepClock:
    """Adds up the time spent in each step.

    Example:
        >>> clock = StepClock()
        >>> with clock.step("plan"):
        ...     pass
        >>> list(clock.milliseconds)
        ['plan']
    """

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Times the block as part of a step, even if it raises."""
        started = time.monotonic()
        try:
            yield
        finally:
            spent = (time.monotonic() - started) * 1000
            self.milliseconds[name] = self.milliseconds.get(name, 0.0) + spent
