"""A cluster whose nodes reach each other through links that can be cut silently."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from typing import Any

import psutil

from spark_eos.testing import EmbeddedKafka, KafkaNode
from spark_eos.testing.broker_node import NodeSettings

_HOST = "127.0.0.1"
_CHUNK = 1 << 16
_LISTENERS = ("INTERNAL", "CONTROLLER")


class LinkedKafka(EmbeddedKafka):
    """An `EmbeddedKafka` that can be partitioned: clients still reach every node."""

    def __init__(self, *, nodes: int, **settings: Any) -> None:
        self._links = _Links(nodes, self._id_of)
        super().__init__(nodes=nodes, **settings)

    def __enter__(self) -> "LinkedKafka":
        super().__enter__()
        return self

    def start(self) -> None:
        self._links.start(self)
        super().start()

    def close(self) -> None:
        super().close()
        self._links.close()

    def part(self, *nodes: KafkaNode) -> None:
        """Cuts these nodes off from all others."""
        self._links.part(node.id for node in nodes)

    def join(self) -> None:
        """Lets everything pass again, including data held back so far."""
        self._links.part(())

    @property
    def together(self) -> list[KafkaNode]:
        """The running nodes that `part` has not cut off."""
        return [node for node in self._running() if node.id not in self._links.cut_off]

    def _new_node(
        self, id_: int, jar_set: str, settings: NodeSettings, port: int | None
    ) -> KafkaNode:
        return _LinkedNode(id_, jar_set, settings, port=port, links=self._links)

    def _id_of(self, port: int) -> int | None:
        """The id of the node whose process has a connection from this port, or None."""
        for node in self.nodes:
            with suppress(RuntimeError, psutil.Error):
                found = psutil.Process(node.pid).net_connections("tcp")
                if any(each.laddr and each.laddr.port == port for each in found):
                    return node.id
        return None


class _LinkedNode(KafkaNode):
    def __init__(self, *arguments: Any, links: "_Links", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._links = links

    def _properties(self) -> dict[str, str]:
        found = super()._properties()
        shown = [found["advertised.listeners"], f"CONTROLLER://{_HOST}:{self.ports.controller}"]
        links = self._links
        return {
            **found,
            "advertised.listeners": links.shown_in(",".join(shown)),
            "controller.quorum.voters": links.shown_in(found["controller.quorum.voters"]),
        }


class _Links:
    """A port for each node and each inter-node listener, served by a thread."""

    def __init__(self, nodes: int, id_of: Callable[[int], int | None]) -> None:
        self.cut_off: frozenset[int] = frozenset()
        self._count = nodes
        self._id_of = id_of
        self._ports: dict[tuple[int, str], int] = {}
        self._servers: list[asyncio.Server] = []
        self._cluster: EmbeddedKafka | None = None
        self._changed = asyncio.Event()  # on each change, set and then replaced
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)

    def start(self, cluster: EmbeddedKafka) -> None:
        if self._cluster is not None:
            return
        self._cluster = cluster
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)

    def close(self) -> None:
        if self._cluster is None or self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def part(self, nodes: Iterable[int]) -> None:
        """Cuts these nodes off from all others."""

        async def part() -> None:
            self.cut_off = frozenset(nodes)
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

        asyncio.run_coroutine_threadsafe(part(), self._loop).result(30)

    def shown_in(self, addresses: str) -> str:
        """The same addresses, with the links' ports in place of the nodes' own."""
        for (node, listener), port in self._ports.items():
            addresses = addresses.replace(f":{self._own(node, listener)}", f":{port}")
        return addresses

    def _own(self, node: int, listener: str) -> int:
        assert self._cluster is not None
        ports = self._cluster.nodes[node - 1].ports
        return ports.internal if listener == "INTERNAL" else ports.controller

    async def _listen(self) -> None:
        for node in range(1, self._count + 1):
            for listener in _LISTENERS:
                serve = partial(self._serve, node, listener)
                server = await asyncio.start_server(serve, _HOST, 0)
                self._servers.append(server)
                self._ports[node, listener] = server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(
        self, to: int, listener: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError, asyncio.CancelledError), closing(writer):
            port = writer.get_extra_info("peername")[1]
            # Don't wait for the lookup while no node is cut off: on a busy machine, it takes
            # seconds, and nodes would connect again and again.
            source = asyncio.ensure_future(asyncio.to_thread(self._id_of, port))
            there, back = await asyncio.open_connection(_HOST, self._own(to, listener))
            ways = ((reader, back), (there, writer))
            with closing(back):
                copies = [asyncio.ensure_future(self._copy(*way, source, to)) for way in ways]
                try:
                    await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for copy in copies:
                        copy.cancel()
                    await asyncio.gather(*copies, return_exceptions=True)

    async def _copy(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        source: "asyncio.Future[int | None]",
        to: int,
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                while self.cut_off and self._are_cut_off(await asyncio.shield(source), to):
                    await self._changed.wait()
                writer.write(data)
                await writer.drain()

    def _are_cut_off(self, source: int | None, to: int) -> bool:
        return source is not None and (source in self.cut_off) != (to in self.cut_off)
