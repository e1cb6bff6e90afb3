"""Plans of batches: ranges and numbers of tasks."""

import pickle
import uuid

import pytest

from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import Assignment, MemberIdentity
from spark_eos._worker import plan
from spark_eos._worker.plan import (
    BatchRange,
    PartitionPlan,
    Shared,
    further_task_count,
    records_of,
    task_count,
    wait_per_record,
)

_TOPIC = uuid.uuid4()
_A0, _A1, _A2 = (TopicPartition("a", index) for index in range(3))
_MEMBER = MemberIdentity("m", 1, "spark-eos-0")


@pytest.mark.parametrize(
    ("records", "partitions", "cores", "most_partitions", "tasks"),
    [
        (0, 10, 2, None, 2),
        (50_000, 10, 2, None, 2),
        (50_001, 10, 2, None, 3),
        (75_001, 10, 3, None, 4),
        (50_001, 10, 8, None, 8),
        (10**9, 10, 2, None, 10),
        (100, 10, 64, None, 10),
        # Each task sends a request to each target partition.
        (50_000, 500, 2, None, 2),
        (500_000, 500, 2, None, 5),
        (10**9, 500, 2, None, 500),
        # And may read so many source partitions.
        (50_000, 500, 2, 64, 8),
        (2_000_000, 500, 2, 64, 20),
    ],
)
def test_task_count(
    records: int, partitions: int, cores: int, most_partitions: int | None, tasks: int
) -> None:
    assert task_count(records, partitions, cores, most_partitions) == tasks


@pytest.mark.parametrize(
    ("partitions", "cores", "most_partitions", "tasks"),
    [(4, 2, None, 4), (500, 2, None, 16), (10_000, 2, None, 16), (5_000, 2, 64, 79), (0, 2, 64, 1)],
)
def test_task_count_of_a_further_attempt(
    partitions: int, cores: int, most_partitions: int | None, tasks: int
) -> None:
    # The tasks' plans grow with the partitions, so the number of tasks must not.
    assert further_task_count(partitions, cores, most_partitions) == tasks


@pytest.mark.parametrize(
    ("before", "records", "tasks"),
    [
        # Milliseconds, tasks and records of the batch before; nothing is known of the first one.
        (None, 100, 4),
        ((40, 4, 100), 100, 1),
        ((110, 1, 100), 100, 1),
        ((111, 1, 100), 100, 4),
        # By what a record takes, whether the batch before was smaller or larger.
        ((60, 1, 100), 200, 1),
        ((60, 1, 100), 201, 4),
        ((10_000, 4, 100_000), 1_000, 1),
        ((20_000, 4, 100_000), 1_000, 4),
        ((5, 1, 0), 100, 1),
        # Many records are written sooner by all cores.
        ((20, 1, 1_000), 1_000, 1),
        ((20, 1, 1_000), 1_001, 4),
    ],
)
def test_few_records_go_in_one_task_unless_it_would_wait_long(
    before: tuple[float, int, int] | None, records: int, tasks: int
) -> None:
    wait_ms = None if before is None else wait_per_record(*before)
    assert task_count(records, 4, 4, None, wait_ms) == tasks


def test_few_records_of_many_partitions_respect_the_tasks_limit() -> None:
    assert task_count(100, 500, 2, 64, wait_ms=0.0) == 8


def test_new_partitions_begin_at_the_groups_offsets() -> None:
    assert records_of(BatchRange(1, {_A0: 5}, {_A0: 8, _A1: 9}), {_A0: 7, _A1: 2}) == 3 + 7


def test_partitions_that_are_not_assigned_are_not_planned() -> None:
    batch = BatchRange(
        1,
        {_A0: 5, _A1: 5},
        {_A0: 8, _A1: 8, _A2: 3},
    )
    known = KnownPartitions().including([_A0, _A1], {})
    assignment = Assignment(_MEMBER, frozenset([_A0]))
    planned = plan.batch_plan(batch, {_A0: 6}, assignment, {"a": _TOPIC}, known)
    expected = plan.PartitionPlan(_TOPIC, 5, 8, 6, known.metadata("a"))
    assert planned == plan.BatchPlan(_MEMBER, {_A0: expected})


def test_a_worker_reads_a_plan_once() -> None:
    part = PartitionPlan(_TOPIC, 0, 9, 3, "text")
    planned = Shared({_A0: part, _A1: part})
    text = pickle.dumps(planned)
    first, second = (pickle.loads(text) for _ in range(2))  # noqa: S301 - its own
    assert first is second
    assert first == planned
    text = pickle.dumps(Shared({_A2: part}))
    assert pickle.loads(text) == {_A2: part}  # noqa: S301 - its own
