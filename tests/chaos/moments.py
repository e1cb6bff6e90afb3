"""A moment in a transaction: a request or its answer is held until a fault has been inflicted."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
)

from chaos import processes
from chaos.schedule import Moment
from chaos.stage import NotInflictedError
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from support.proxy import KafkaProxy
from support.proxy_faults import Fault, Link, Request

AN_OCCASION: Final = 22.5
"""Seconds in which a running query reaches each moment of a transaction."""

# Classes of the requests that are held, or whose answers are held.
_REQUEST: Final[dict[Moment, Any]] = {
    Moment.BEFORE_FENCING: InitProducerIdRequest,
    Moment.BEFORE_OFFSETS: TxnOffsetCommitRequest,
    Moment.BEFORE_END: EndTxnRequest,
}
_ANSWER: Final[dict[Moment, Any]] = {
    Moment.FENCED: InitProducerIdRequest,
    # No record of these partitions is sent before the answer that they were added.
    Moment.BEFORE_PRODUCE: AddPartitionsToTxnRequest,
    Moment.PRODUCED: ProduceRequest,
    Moment.OFFSETS_SENT: TxnOffsetCommitRequest,
    Moment.ENDED: EndTxnRequest,
}


class _Held(Fault):
    """Holds a request or answer, after ``skip`` others, until the fault is over."""

    def __init__(self, skip: int, *, answer: bool) -> None:
        self.held = threading.Event()
        self.over = threading.Event()
        self.sender = 0
        self.transactional_id = ""
        self._skip = skip
        self._answer = answer

    async def request(self, link: Link, request: Request) -> None:
        if self._answer or not await self._hold(link, request) or processes.command(self.sender):
            await super().request(link, request)
        # Otherwise, the sender was killed before it could send this request.

    async def answer(self, link: Link, request: Request, content: bytes) -> None:
        if self._answer:
            await self._hold(link, request)
        await super().answer(link, request, content)

    async def _hold(self, link: Link, request: Request) -> bool:
        self._skip -= 1
        if self._skip >= 0 or self.held.is_set():
            return False
        self.sender = int(link.client_id.rpartition("-")[2])
        self.transactional_id = request.message().transactional_id
        self.held.set()
        await asyncio.to_thread(self.over.wait)
        return True


@contextmanager
def held(
    proxy: KafkaProxy,
    moment: Moment,
    *,
    skip: int = 0,
    seconds: float = AN_OCCASION,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, str]]:
    """Waits for a moment, after ``skip`` others of its kind, and holds it while the body runs.

    Calls ``meanwhile`` repeatedly until the moment comes.

    Yields:
        The id of the process that sent the request, and the transactional id.

    Raises:
        NotInflictedError: The moment has not come within the time limit.
    """
    answer = moment in _ANSWER
    message = (_ANSWER if answer else _REQUEST)[moment]
    commits = (lambda sent: bool(sent.committed)) if message is EndTxnRequest else None
    hold = _Held(skip, answer=answer)
    rule = proxy.on(message, hold, times=None, where=commits)
    end = time.monotonic() + seconds
    try:
        while not hold.held.wait(0.02):
            meanwhile()
            if time.monotonic() > end:
                raise NotInflictedError(f"no transaction has come to {moment.value}")
        yield hold.sender, hold.transactional_id
    finally:
        rule.times = 0
        hold.over.set()
