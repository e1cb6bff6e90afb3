"""A time limit for all attempts of an operation, with pauses between the attempts."""

import math
import time

import tenacity

from spark_eos.errors import DeadlineExceededError, PrintableError, text_of


class RetriableError(PrintableError):
    """An attempt failed, but a later attempt may succeed; the message says why it failed."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class Deadline:
    """The time at which an operation gives up."""

    def __init__(self, seconds: float, setting: str) -> None:
        self.seconds = seconds
        self.setting = setting
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._end

    def attempts(self, what: str, *, pause: float = 0.005) -> tenacity.Retrying:
        """Return a wrapper that retries after a `RetriableError`, with growing, random pauses."""

        def give_up(state: tenacity.RetryCallState) -> None:
            cause = state.outcome.exception() if state.outcome else None
            raise DeadlineExceededError(
                f"{what}: no success within {self.seconds:g} s ({self.setting}); "
                f"last error: {text_of(cause)}"
            ) from cause

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(RetriableError),
            stop=lambda _state: self.expired,
            wait=tenacity.wait_random_exponential(multiplier=pause, max=0.5),
            retry_error_callback=give_up,
        )


def group_deadline(timeout_ms: float, at_most: float = math.inf) -> Deadline:
    """Start the deadline of a call to a query's group; ``at_most`` is in seconds."""
    return Deadline(min(at_most, timeout_ms / 1000), "group_timeout_ms")
