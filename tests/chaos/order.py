"""Checks a rule on requests through the proxy: offsets come after the records they represent.

All records of a producer must be acknowledged before its TxnOffsetCommit, and none may follow until
the transaction ends. Otherwise, a lost record, or an abort that the client omits, would commit
offsets without output.
"""

from collections import defaultdict

from kafka.protocol.producer import EndTxnRequest, ProduceRequest

from chaos.traces import producer_of
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from support.proxy_faults import Link, Request

_Producer = tuple[int, int]


class OrderCheck:
    """Watches a proxy; identifies producers by id and epoch."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._waiting: dict[_Producer, set[tuple[int, int]]] = defaultdict(set)
        self._committing: set[_Producer] = set()

    def request(self, link: Link, request: Request) -> None:
        if request.api_key == ProduceRequest.API_KEY:
            producer = producer_of(request.message())
            if producer is None:
                return
            if producer in self._committing:
                self.violations.append(f"{producer}: records after the transaction's offsets")
            self._waiting[producer].add((id(link), request.correlation_id))
        elif request.api_key == TxnOffsetCommitRequest.API_KEY:
            message = request.message()
            producer = (message.producer_id, message.producer_epoch)
            if self._waiting[producer]:
                self.violations.append(f"{producer}: offsets before all records were acknowledged")
            self._committing.add(producer)
        elif request.api_key == EndTxnRequest.API_KEY:
            message = request.message()
            self._committing.discard((message.producer_id, message.producer_epoch))

    def answer(self, link: Link, request: Request, _content: bytes) -> None:
        if request.api_key == ProduceRequest.API_KEY:
            for waiting in self._waiting.values():
                waiting.discard((id(link), request.correlation_id))

    def gone(self, link: Link) -> None:
        """A connection has ended: unanswered requests are sent again on another one."""
        for producer, waiting in self._waiting.items():
            self._waiting[producer] = {key for key in waiting if key[0] != id(link)}
