"""An offset commit that reaches the broker in the next transaction."""

import asyncio
import threading
from contextlib import suppress

from support.proxy import KafkaProxy
from support.proxy_faults import Fault, Link, Request


class LateOffsets(Fault):
    """Holds one request back, cuts its connection, and delivers it in the next transaction."""

    def __init__(self, proxy: KafkaProxy) -> None:
        self.delivered = threading.Event()
        self._proxy = proxy
        self._held: Request | None = None

    async def request(self, link: Link, request: Request) -> None:
        if self._held is None and not self.delivered.is_set():
            self._held = request
            link.cut()
        else:
            await super().request(link, request)

    async def answer(self, link: Link, request: Request, content: bytes) -> None:
        if self._held is not None and self._follows(request):
            # If the broker is away, deliver the request in the next transaction instead.
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._proxy.deliver_late(self._held)
                self._held = None
                self.delivered.set()
        await super().answer(link, request, content)

    def _follows(self, request: Request) -> bool:
        assert self._held is not None
        held, later = self._held.message(), request.message()
        # A repetition of the held request belongs to the same transaction.
        return bool(later.transactional_id == held.transactional_id and later.topics != held.topics)
