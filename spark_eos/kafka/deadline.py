"""One time limit shared by every attempt of an operation, and the pauses between attempts."""

import time

import tenacity

from spark_eos.errors import DeadlineExceededError


class RetriableError(Exception):
    """The attempt failed in a way that a later one may cure; the text says how."""


class Deadline:
    """A point in time after which an operation gives up.

    Args:
        seconds: Time allowed from now on.
        setting: The option that raises the limit, named in the error.
    """

    def __init__(self, seconds: float, setting: str) -> None:
        self.seconds = seconds
        self.setting = setting
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._end

    def exceeded(self, what: str, cause: object) -> DeadlineExceededError:
        """The error for an operation that ran out of time."""
        return DeadlineExceededError(
            f"{what}: no success within {self.seconds:g} s ({self.setting}); last: {cause}"
        )

    def attempts(self, what: str, *, pause: float = 0.005) -> tenacity.Retrying:
        """Attempts until one does not raise `RetriableError`, with growing, jittered pauses.

        Args:
            what: The operation, for the error's text.
            pause: First pause in seconds; later ones grow, at random, up to half a second.

        Raises:
            DeadlineExceededError: When the time is up; it names the last cause.
        """

        def give_up(state: tenacity.RetryCallState) -> None:
            cause = state.outcome.exception() if state.outcome else None
            raise self.exceeded(what, cause) from cause

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(RetriableError),
            stop=lambda _state: self.expired,
            wait=tenacity.wait_random_exponential(multiplier=pause, max=0.5),
            retry_error_callback=give_up,
        )
