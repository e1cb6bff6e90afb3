"""Finds and moves leaders and coordinators in an embedded Kafka."""

import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import reduce
from typing import Any, Final, TypeVar

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import RetriableError
from tenacity import (
    Retrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_delay,
    wait_fixed,
)

GROUPS: Final = "__consumer_offsets"
"""The topic whose partitions' leaders coordinate groups."""
TRANSACTIONS: Final = "__transaction_state"
"""The topic whose partitions' leaders coordinate transactional ids."""
_REQUEST_TIMEOUT_MS: Final = 3_000
_PREFERRED: Final = 0
_AWAY: Final = (RetriableError, OSError)
_Answer = TypeVar("_Answer")
_Partition = Mapping[str, Any]


class Leaders:
    """Queries a cluster at the given addresses, over a new connection each time."""

    def __init__(self, servers: str, timeout: float) -> None:
        self._addresses = deque(servers.split(","))
        self._timeout = timeout

    def leader(self, topic: str, partition: int) -> int:
        """Return the id of the node that leads a partition, as soon as it has a leader."""
        leader = -1

        def known() -> bool:
            nonlocal leader
            leader = int(self._partition(topic, partition)["leader_id"])
            return leader >= 0

        self._until(known, lambda: f"{topic}-{partition} has no leader")
        return leader

    def coordinating(self, topic: str, key: str) -> int:
        """Return the partition whose leader coordinates a group or transactional id."""
        # The absolute value of Java's String.hashCode(), a signed 32-bit number.
        units = (unit for (unit,) in struct.iter_unpack("<H", key.encode("utf-16-le")))
        hashed = reduce(lambda value, unit: (31 * value + unit) & 0xFFFFFFFF, units, 0)
        return min(hashed, 2**32 - hashed) % 2**31 % len(self._partitions(topic))

    def controller(self) -> int:
        """Return the id of the active controller."""
        return int(self._quorum()["leader_id"])

    def move(self, topic: str, partition: int, node: int) -> None:
        """Make a node a replica of a partition and then its leader."""
        replicas = self._partition(topic, partition)["replica_nodes"]
        chosen = [node, *(other for other in replicas if other != node)][: len(replicas)]
        where = TopicPartition(topic, partition)
        refused = self._ask(lambda client: client.alter_partition_reassignments({where: chosen}))
        if refused[where] is not None:
            raise refused[where](f"{where.topic}-{where.partition}")

        def moved() -> bool:
            now = self._partition(topic, partition)
            if now["replica_nodes"] != chosen or node not in now["isr_nodes"]:
                return False
            if now["leader_id"] == node:
                return True
            self._ask(
                lambda client: client.elect_leaders(
                    _PREFERRED, {topic: [partition]}, raise_errors=False
                )
            )
            return False

        self._until(moved, lambda: f"{topic}-{partition} is not led by node {node}")

    def await_in_sync(self) -> None:
        """Wait until the replicas of all partitions, and all controllers, are in sync."""
        self._until(lambda: not any(self._out_of_sync()), lambda: "; ".join(self._out_of_sync()))

    def _out_of_sync(self) -> Iterator[str]:
        for topic in self._ask(lambda client: client.describe_topics()):
            for partition in topic["partitions"]:
                wanted, there = sorted(partition["replica_nodes"]), sorted(partition["isr_nodes"])
                if wanted != there:
                    name = f"{topic['name']}-{partition['partition_index']}"
                    yield f"{name} has replicas {wanted}, but only {there} are in sync"
        try:
            voters = self._quorum()["current_voters"]
        except _AWAY as error:
            yield f"no controller answers: {error}"
            return
        ends = {voter["replica_id"]: voter["log_end_offset"] for voter in voters}
        if len(set(ends.values())) > 1:
            yield f"controllers have the cluster's metadata up to different offsets: {ends}"

    def _quorum(self) -> _Partition:
        answer = self._ask(lambda client: client.describe_metadata_quorum())
        quorum: _Partition = answer["topics"][0]["partitions"][0]
        return quorum

    def _partition(self, topic: str, partition: int) -> _Partition:
        for partition_info in self._partitions(topic):
            if partition_info["partition_index"] == partition:
                return partition_info
        raise LookupError(f"There is no partition {topic}-{partition}")

    def _partitions(self, topic: str) -> list[_Partition]:
        (description,) = self._ask(lambda client: client.describe_topics([topic]))
        partitions: list[_Partition] = description["partitions"]
        if not partitions:
            raise LookupError(
                f"There is no topic {topic}; Kafka creates its internal topics on first use"
            )
        return partitions

    def _ask(self, question: Callable[[KafkaAdminClient], _Answer]) -> _Answer:
        """Return a node's answer; if a node does not answer, ask the next one."""

        def ask() -> _Answer:
            try:
                with closing(
                    KafkaAdminClient(
                        bootstrap_servers=self._addresses[0],
                        # A paused node accepts the connection but never answers.
                        bootstrap_timeout_ms=_REQUEST_TIMEOUT_MS,
                        request_timeout_ms=_REQUEST_TIMEOUT_MS,
                    )
                ) as client:
                    return question(client)
            except _AWAY:
                # A client with all addresses may try the same address again and again.
                self._addresses.rotate(-1)
                raise

        return Retrying(
            retry=retry_if_exception_type(_AWAY),
            wait=wait_fixed(0.1),
            stop=stop_after_delay(self._timeout),
            reraise=True,
        )(ask)

    def _until(self, done: Callable[[], object], problem: Callable[[], str]) -> None:
        retrying = Retrying(
            retry=retry_if_result(lambda result: not result),
            wait=wait_fixed(0.05),
            stop=stop_after_delay(self._timeout),
            retry_error_callback=lambda _: False,
        )
        if not retrying(done):
            raise TimeoutError(f"After {self._timeout:g} s, {problem()}")
