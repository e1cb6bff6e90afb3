"""A query of 1,000 source partitions in 300 topics, killed in the middle of a batch."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.offsets import all_group_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.testing import EmbeddedKafka
from support.flow import Flow
from support.holding import LONG_TRANSACTIONS, SMALL_BATCHES
from support.queries import QueryProcess, run_available

_TOPICS, _PARTITIONS, _ROWS = 300, 1_000, 10
# Enough rows before the held row that they leave all buffers, wherever Spark puts its partition.
_ROWS_BEFORE, _PADDING = 400, b"x" * 4_000


def _topics(flow: Flow) -> dict[str, int]:
    """The topics that the pattern matches, with their numbers of partitions."""
    others = _TOPICS - 1
    left = _PARTITIONS - flow.partitions
    return {
        flow.source: flow.partitions,
        **{f"{flow.source}-{n}": (left + n) // others for n in range(others)},
    }


def _filled(flow: Flow) -> list[str]:
    """Creates the topics, with equally many records in each partition, and a row to wait at."""
    topics = _topics(flow)
    admin = AdminClient({"bootstrap.servers": flow.bootstrap_servers})
    new = [NewTopic(name, count) for name, count in topics.items() if name != flow.source]
    for made in admin.create_topics(new).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": flow.bootstrap_servers})
    partitions = [(topic, index) for topic, count in topics.items() for index in range(count)]
    *others, (held, last) = partitions
    values: list[tuple[str, int, bytes | None, str]] = [
        (topic, index, None, f"{topic}/{index}/{row}")
        for topic, index in others
        for row in range(_ROWS)
    ]
    values += [(held, last, _PADDING, f"{held}/{last}/{row}") for row in range(_ROWS_BEFORE)]
    values.append((held, last, None, "hold"))
    for topic, index, key, value in values:
        producer.produce(topic, value, key, partition=index)
        producer.poll(0)
    assert producer.flush(60) == 0
    return sorted(value for *_, value in values)


def _committed(flow: Flow) -> dict[TopicPartition, int]:
    with flow.connections() as connections:
        found = all_group_offsets(connections, flow.group_id, Deadline(30, "test"))
    return {partition: one.offset for partition, one in found.items()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_1000_partitions_of_300_topics_survive_a_kill(
    tmp_path: Path, spark_eos_session: SparkSession
) -> None:
    with EmbeddedKafka(heap="1g") as broker:
        flow = Flow(broker, str(tmp_path / "checkpoint"), str(tmp_path / "workers"))
        expected, pattern = _filled(flow), f"{flow.source}(-.*)?"
        with QueryProcess(
            flow,
            tmp_path / "killed.log",
            pattern=pattern,
            hold=[str(tmp_path / "go"), "hold"],
            config=SMALL_BATCHES,
            **LONG_TRANSACTIONS,
        ) as query:
            # The other task has committed its half.
            query.until(
                lambda: sum(offset == _ROWS for offset in _committed(flow).values()) > 100,
                "the first commit",
            )
            query.until(flow.ongoing_transactions, "an ongoing transaction")
        assert flow.open_transactions() != []
        written = sum(_committed(flow).values())
        (tmp_path / "go").touch()
        # As on another host, where no worker happens to take the same transactional id.
        flow.worker_directory += "-elsewhere"
        read = {"subscribe": None, "subscribePattern": pattern}
        (report,) = run_available(spark_eos_session, flow, read=read, **LONG_TRANSACTIONS)
        assert sorted(flow.values()) == expected
        assert 0 < report.rows_skipped == written < len(expected)
        assert len(report.partitions) == _PARTITIONS
        assert len({one.topic for one in report.partitions}) == _TOPICS
        assert sorted(_committed(flow).values()) == [*[_ROWS] * (_PARTITIONS - 1), _ROWS_BEFORE + 1]
        assert flow.open_transactions() == []
