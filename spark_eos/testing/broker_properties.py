"""Settings that keep the embedded broker small, quick to start and quick to react."""

import json
import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_eos.testing.broker_security import BrokerSecurity
from spark_eos.testing.embedded_server import HOST

INTERNAL_TOPICS: Final = (
    "offsets.topic",
    "transaction.state.log",
    "share.coordinator.state.topic",
)
"""Prefixes of the settings for topics in which coordinators keep their state."""
_PLAIN_LISTENERS = "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"

BASE: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "INTERNAL",
    "auto.create.topics.enable": "false",
    # Groups react at once, and tests may use short timeouts.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    # After kill(), the broker's old registration must expire before it can register again.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "200",
    "controller.quorum.election.timeout.ms": "200",
    "controller.quorum.fetch.timeout.ms": "2000",
    # Few threads and no background work.
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
    "group.coordinator.threads": "1",
    "log.cleaner.enable": "false",
    # By default, the controller writes a no-op record every 500 ms.
    "metadata.max.idle.interval.ms": "0",
    # Test records may have any timestamp and must not be deleted because of it.
    "log.retention.ms": "-1",
}


@dataclass(frozen=True)
class Ports:
    """The TCP ports of one broker on 127.0.0.1."""

    client: int
    advertised: int  # where connected clients are redirected: the client port, or a proxy's
    internal: int  # plaintext, for the broker itself and for administration
    controller: int
    secured: Mapping[str, int]  # by listener


def free_numbers(count: int) -> list[int]:
    """Return the numbers of ports that were free a moment ago."""
    # All sockets stay open until the last one has a port, so that all ports differ.
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind((HOST, 0))
        return [listener.getsockname()[1] for listener in listeners]


def free_ports() -> Ports:
    """Return ports that were free a moment ago."""
    return cluster_ports([None], [None])[0]


def cluster_ports(
    clients: Sequence[int | None],
    advertised: Sequence[int | None],
    secured: Collection[str] = (),
) -> tuple[Ports, ...]:
    """Return the ports of each node: free ones, unless client or advertised ports are given."""
    given = {*clients, *advertised} - {None}
    numbers = free_numbers(len(clients) * (3 + len(secured)) + len(given))
    free = (number for number in numbers if number not in given)
    chosen = [next(free) if client is None else client for client in clients]
    return tuple(
        Ports(
            client=client,
            advertised=client if shown is None else shown,
            internal=next(free),
            controller=next(free),
            secured={name: next(free) for name in secured},
        )
        for client, shown in zip(chosen, advertised, strict=True)
    )


def broker_properties(
    node: int,
    ports: Sequence[Ports],
    data: Path,
    overrides: Mapping[str, str],
    security: BrokerSecurity | None = None,
) -> dict[str, str]:
    """Return the complete settings of a node; `overrides` take precedence.

    Args:
        node: The node's id, counted from 1.
        ports: The ports of all nodes, in order.
        data: The node's data directory.
        overrides: Further settings.
        security: Secured listeners.
    """
    own = ports[node - 1]
    others = [f"{name}://{HOST}:{port}" for name, port in own.secured.items()]
    others = [f"INTERNAL://{HOST}:{own.internal}", *others]
    controller = f"CONTROLLER://{HOST}:{own.controller}"
    listeners = security.listeners if security is not None else {}
    protocols = [f"{name}:{listener.protocol}" for name, listener in listeners.items()]
    voters = [f"{id_}@{HOST}:{each.controller}" for id_, each in enumerate(ports, 1)]
    return {
        **BASE,
        **_replication(len(ports)),
        "node.id": str(node),
        "listener.security.protocol.map": ",".join([_PLAIN_LISTENERS, *protocols]),
        "controller.quorum.voters": ",".join(voters),
        "listeners": ",".join([f"CLIENT://{HOST}:{own.client}", *others, controller]),
        "advertised.listeners": ",".join([f"CLIENT://{HOST}:{own.advertised}", *others]),
        "log.dirs": str(data),
        **({} if security is None else security.properties()),
        **overrides,
    }


def _replication(nodes: int) -> dict[str, str]:
    """Return production settings for replication, limited by the number of nodes."""
    replicas = min(nodes, 3)
    in_sync = str(max(1, replicas - 1))
    properties = {"default.replication.factor": str(replicas), "min.insync.replicas": in_sync}
    for topic in INTERNAL_TOPICS:
        properties[f"{topic}.replication.factor"] = str(replicas)
        # Each partition costs time on first use and at every start.
        properties[f"{topic}.num.partitions"] = str(nodes)
    for topic in INTERNAL_TOPICS[1:]:
        properties[f"{topic}.min.isr"] = in_sync
    if nodes > 1:
        # How long brokers wait for a paused controller before they ask the next one.
        properties["controller.socket.timeout.ms"] = "3000"
    return properties


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write a Java properties file."""
    lines = (f"{_escape(key)}={_escape(value)}\n" for key, value in properties.items())
    path.write_text("".join(lines), encoding="ascii")


def _escape(text: str) -> str:
    # JSON has the same escapes as Java's properties: backslash, line ends, tab, and UTF-16 \uXXXX.
    escaped = json.dumps(text)[1:-1]
    return f"\\{escaped}" if escaped.startswith(" ") else escaped
