"""The settings of the embedded broker: small, quick to start, quick to react."""

import json
import socket
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from spark_eos.testing.broker_security import BrokerSecurity
from spark_eos.testing.embedded_server import HOST

_PLAIN_LISTENERS = "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"

BASE: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "INTERNAL",
    "auto.create.topics.enable": "false",
    # With one broker nothing can be replicated.
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Each of these partitions costs time at its first use and at every start.
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # Groups react at once, and tests may ask for short timeouts.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    # After kill(), the broker's old registration must expire before it can register again.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "200",
    "controller.quorum.election.timeout.ms": "200",
    "controller.quorum.fetch.timeout.ms": "500",
    # Few threads, no background work.
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
    "group.coordinator.threads": "1",
    "log.cleaner.enable": "false",
    # Else the controller writes a record every 500 ms that does nothing.
    "metadata.max.idle.interval.ms": "0",
    # A test's records may have any timestamp, and must not be deleted because of it.
    "log.retention.ms": "-1",
}


@dataclass(frozen=True)
class Ports:
    """The TCP ports of one broker on 127.0.0.1."""

    client: int
    advertised: int  # to which connected clients are redirected: the same, or a proxy's
    internal: int  # plaintext, for the broker itself and for administration
    controller: int
    secured: Mapping[str, int]  # by listener


def free_ports(
    client: int | None = None, advertised: int | None = None, secured: Collection[str] = ()
) -> Ports:
    """Return ports that were free a moment ago; `client` and `advertised` are used if given."""
    with ExitStack() as stack:
        ports = []
        for _ in range(3 + len(secured)):
            # All sockets stay open until the last port is chosen, so that the ports differ.
            listener = stack.enter_context(socket.socket())
            listener.bind((HOST, 0))
            ports.append(listener.getsockname()[1])
    chosen = client if client is not None else ports[0]
    return Ports(
        client=chosen,
        advertised=chosen if advertised is None else advertised,
        internal=ports[1],
        controller=ports[2],
        secured=dict(zip(secured, ports[3:], strict=True)),
    )


def broker_properties(
    ports: Ports,
    data: Path,
    overrides: Mapping[str, str],
    security: BrokerSecurity | None = None,
) -> dict[str, str]:
    """Return the complete settings of a broker; `overrides` take precedence."""
    others = [f"{name}://{HOST}:{port}" for name, port in ports.secured.items()]
    others = [f"INTERNAL://{HOST}:{ports.internal}", *others]
    controller = f"CONTROLLER://{HOST}:{ports.controller}"
    listeners = security.listeners if security is not None else {}
    protocols = [f"{name}:{listener.protocol}" for name, listener in listeners.items()]
    return {
        **BASE,
        "listener.security.protocol.map": ",".join([_PLAIN_LISTENERS, *protocols]),
        "controller.quorum.voters": f"1@{HOST}:{ports.controller}",
        "listeners": ",".join([f"CLIENT://{HOST}:{ports.client}", *others, controller]),
        "advertised.listeners": ",".join([f"CLIENT://{HOST}:{ports.advertised}", *others]),
        "log.dirs": str(data),
        **({} if security is None else security.properties()),
        **overrides,
    }


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write a Java properties file."""
    lines = (f"{_escape(key)}={_escape(value)}\n" for key, value in properties.items())
    path.write_text("".join(lines), encoding="ascii")


def _escape(text: str) -> str:
    # JSON escapes as Java's properties do: backslash, line ends, tab, and \uXXXX in UTF-16.
    escaped = json.dumps(text)[1:-1]
    return f"\\{escaped}" if escaped.startswith(" ") else escaped
