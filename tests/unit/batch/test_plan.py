"""Plans of batches: ranges, gaps, numbers of tasks."""

import uuid

import pytest

from spark_eos import errors
from spark_eos._batch import plan
from spark_eos._batch.plan import BatchRange, PartitionPairs, Waits, task_count, tasks_for
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import MemberIdentity
from spark_eos._progress.state import check_no_gap


@pytest.mark.parametrize(
    ("records", "cores", "tasks"),
    [
        (0, 2, 2),
        (100, 2, 2),
        (50_000, 2, 2),
        (50_001, 2, 3),
        (75_001, 3, 4),
        (50_001, 8, 8),
        (10**9, 2, 10),
        (100, 64, 10),
    ],
)
def test_task_count(records: int, cores: int, tasks: int) -> None:
    starts = {TopicPartition("a", index): 5 for index in range(10)}
    ends = {**starts, TopicPartition("a", 3): 5 + records}
    assert task_count(BatchRange(1, starts, ends), {}, cores) == tasks
    # New partitions begin at the group's offsets.
    assert task_count(BatchRange(1, {}, ends), starts, cores) == tasks


@pytest.mark.parametrize(
    ("records", "most_partitions", "tasks"),
    [
        (50_000, None, 2),
        (50_000, 64, 8),
        (500_000, None, 5),
        (500_000, 64, 8),
        (2_000_000, 64, 20),
        (10**9, None, 500),
    ],
)
def test_tasks_for_many_partitions(records: int, most_partitions: int | None, tasks: int) -> None:
    assert tasks_for(records, 500, 2, most_partitions) == tasks


@pytest.mark.parametrize(
    ("waits", "records", "tasks"),
    [
        # Nothing is known of the first batch.
        (None, 100, 4),
        (Waits(100, 4, 40), 100, 1),
        (Waits(100, 1, 110), 100, 1),
        (Waits(100, 1, 111), 100, 4),
        # By what a record takes, whether the batch before was smaller or larger.
        (Waits(100, 1, 60), 200, 1),
        (Waits(100, 1, 60), 201, 4),
        (Waits(100_000, 4, 10_000), 1_000, 1),
        (Waits(100_000, 4, 20_000), 1_000, 4),
        (Waits(0, 1, 5), 100, 1),
        # Many records are written sooner by all cores.
        (Waits(1_000, 1, 20), 1_000, 1),
        (Waits(1_000, 1, 20), 1_001, 4),
    ],
)
def test_few_records_go_in_one_task_unless_it_would_wait_long(
    waits: Waits | None, records: int, tasks: int
) -> None:
    starts = {TopicPartition("a", index): 0 for index in range(4)}
    batch = BatchRange(1, starts, {**starts, TopicPartition("a", 0): records})
    assert task_count(batch, {}, 4, None, waits) == tasks


def test_few_records_of_many_partitions_respect_what_a_task_may_read() -> None:
    assert tasks_for(100, 500, 2, 64) == 8


_TOPIC = uuid.uuid4()
_A0, _A1, _A2 = (TopicPartition("a", index) for index in range(3))
_MEMBER = MemberIdentity("m", 1, "spark-eos-0")


def test_progress_at_and_beyond_the_range_is_fine() -> None:
    batch = BatchRange(
        1,
        {_A0: 5, _A1: 5},
        {_A0: 8, _A1: 8, _A2: 3},
    )
    check_no_gap("g", batch, {_A0: 5, _A1: 9}, PartitionPairs())
    known = KnownPartitions().including([_A0, _A1], {})
    planned = plan.batch_plan(batch, {_A0: 6}, {_A0: _MEMBER}, {"a": _TOPIC}, known)
    expected = plan.PartitionPlan(_TOPIC, 5, 8, 6, _MEMBER, known.metadata("a"))
    assert planned == {_A0: expected}


def test_a_dropped_partition_needs_no_check() -> None:
    batch = BatchRange(3, {TopicPartition("gone", 0): 5}, {_A0: 8})
    check_no_gap("g", batch, {_A0: 1}, PartitionPairs())


def test_a_gap_is_refused() -> None:
    batch = BatchRange(2, {_A0: 5}, {_A0: 8})
    with pytest.raises(errors.OffsetGapError, match="offsets 3 to 4 would never be written"):
        check_no_gap("g", batch, {_A0: 3}, PartitionPairs())
