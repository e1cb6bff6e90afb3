"""Broker logs of simulated transactions, both correct and incorrect."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from chaos.invariants import Rule
from chaos.lockstep import Logged, judged, read_logs
from spark_eos._kafka.topic_partition import TopicPartition as OwnPartition
from spark_eos.testing import EmbeddedKafka
from support import groups

# Each test stops its own broker, to read what the broker has written.
pytestmark = pytest.mark.slow


class Query:
    """Transactions like those of a query's tasks."""

    def __init__(self, broker: EmbeddedKafka) -> None:
        self.broker = broker
        self.servers = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        self._producer = Producer({**self.servers, "transactional.id": "eos/query/1"})
        self._producer.init_transactions(60)
        for topic in ("in", "out"):
            broker.create_topic(topic, 1)

    def begin(self, *positions: int, offset: int | None) -> None:
        """Records with positions, and the offset after them."""
        self._producer.begin_transaction()
        for position in positions:
            header = b"in:0:%d" % position
            self._producer.produce("out", b"v", partition=0, headers={"position": header})
        assert self._producer.flush(60) == 0
        if offset is not None:
            with closing(Consumer({**self.servers, "group.id": "query"})) as consumer:
                self._producer.send_offsets_to_transaction(
                    [TopicPartition("in", 0, offset)], consumer.consumer_group_metadata(), 60
                )

    def write(self, *positions: int, offset: int | None) -> None:
        self.begin(*positions, offset=offset)
        self._producer.commit_transaction(60)

    def abort(self) -> None:
        self._producer.abort_transaction(60)

    def logged(self) -> Logged:
        # The logs of a stopped broker are complete.
        self.broker.stop()
        return read_logs(
            self.broker.nodes[0]._data(),
            group_id="query",
            prefix="eos/query/",
            outputs=["out"],
            positions=True,
            pairs={},
            drained=True,
        )


@pytest.fixture
def query() -> Iterator[Query]:
    with EmbeddedKafka() as broker:
        yield Query(broker)


def test_sound_transactions(query: Query) -> None:
    query.write(0, 1, 2, offset=3)
    query.begin(3, 4, offset=5)
    query.abort()
    query.write(3, offset=5)
    query.write(offset=6)  # all its records were filtered out
    logged = query.logged()
    assert logged == Logged(committed=3, aborted=1, records=4, offsets={OwnPartition("in", 0): 6})
    assert judged(logged, 4, drained=True) == []
    (violation,) = judged(logged, 5, drained=True)
    assert violation.rule is Rule.LOCKSTEP
    assert violation.detail == "1 times, first: 4 records are visible, the verifier saw 5"


def test_what_does_not_fit(query: Query) -> None:
    query.write(0, 1, offset=2)
    query.write(1, offset=3)
    query.write(4, offset=None)
    query.write(3, offset=2)
    groups.set_offsets(query.broker.bootstrap_servers, "query", {OwnPartition("in", 0): 9})
    query.write(8, offset=10)
    query.begin(10, offset=11)
    logged = query.logged()
    assert sorted(problem.partition(": ")[2] or problem for problem in logged.problems) == [
        "from 3 back to 2",
        f"it has records of {[OwnPartition('in', 0)]}, and offsets of []",
        "it was neither committed nor aborted",
        "out-0 has records of in-0 from 1 to 1, and their offset went from 2 to 3",
        "out-0 has records of in-0 from 3 to 3, and their offset went from 3 to 2",
        "out-0 has records of in-0 from 8 to 8, and their offset went from 9 to 10",
    ]
