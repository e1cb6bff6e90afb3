"""Services that consist of several parts."""

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TypeVar

S = TypeVar("S", bound="Service")


class Service(ABC):
    """Ends its parts in reverse order, even if not all have started; a context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self: S) -> S:
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @abstractmethod
    def _begin(self) -> None:
        """Starts the parts on ``_stack`` and waits until all are ready."""
