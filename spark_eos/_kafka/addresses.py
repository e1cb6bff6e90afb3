"""Whether addresses lead to a cluster that is already connected."""

import socket
from collections.abc import Iterable

from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline

_Address = tuple[str, str]


def same_cluster(connections: Connections, servers: str, deadline: Deadline) -> bool:
    """Whether one of ``bootstrap.servers`` is a broker of the cluster that is connected."""
    theirs = _split(servers)
    ours = _split(connections.bootstrap_servers) | set(
        map(_address, connections.addresses(deadline))
    )
    # Names are resolved only if the texts differ: "localhost:9092" and "127.0.0.1:9092".
    return not theirs.isdisjoint(ours) or not _resolved(theirs).isdisjoint(_resolved(ours))


def _split(servers: str) -> set[_Address]:
    return {_address(one) for one in servers.split(",") if one.strip()}


def _address(text: str) -> _Address:
    """Host and port of ``PLAINTEXT://Host:9092``, as Kafka's clients read it."""
    host, _, port = text.strip().rpartition("://")[2].lower().rpartition(":")
    return host.strip("[]"), port


def _resolved(addresses: Iterable[_Address]) -> set[_Address]:
    found: set[_Address] = set()
    for host, port in addresses:
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            continue
        found.update((str(answer[4][0]), port) for answer in answers)
    return found
