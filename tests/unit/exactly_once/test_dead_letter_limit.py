"""A batch with dead letters: its result, given the tasks' reports in each attempt."""

import uuid
from typing import Any

import pytest

from spark_eos._checks.dead_letter_limit import DeadLetterLimit
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import MemberIdentity
from spark_eos._worker.dead_letter_settings import DeadLetterSettings, DeadLetterTally
from spark_eos._worker.plan import BatchPlan, BatchRange, PartitionPlan
from spark_eos._worker.task_report import (
    NOT_ATTEMPTED,
    OVER_LIMIT,
    REJECTED,
    RETRIED,
    JobOutcome,
    PartitionOutcome,
)
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.errors import WriteError
from spark_eos.options import Limits, Transactions

PARTITIONS = [TopicPartition("in", 0), TopicPartition("in", 1)]
BATCH = BatchRange(3, dict.fromkeys(PARTITIONS, 100), dict.fromkeys(PARTITIONS, 1_100))
PLANNED = BatchPlan(
    MemberIdentity("m", 1, "id"),
    {partition: PartitionPlan(uuid.uuid4(), 100, 1_100, 100, "") for partition in PARTITIONS},
)
FRESH = dict.fromkeys(PARTITIONS, 100)
Attempts = list[JobOutcome]


def limit(committed: dict[Any, int] = FRESH, most: float = 0.1) -> DeadLetterLimit:
    settings = WriterSettings(
        client=ClientSettings({"bootstrap.servers": "localhost:9092"}),
        group_id="group",
        topic=None,
        transactions=Transactions(max_records=1, max_bytes=1, max_ms=1),
        limits=Limits(connect_timeout_ms=1_500, max_block_ms=1, metadata_max_idle_ms=1),
        fail_on_data_loss=False,
        dead_letters=DeadLetterSettings(topic="dlq", limit=most),
    )
    return DeadLetterLimit(settings, BATCH, committed, None)


def tally_of(number: int, text: str = "away") -> DeadLetterTally:
    tally = DeadLetterTally()
    for _ in range(number):
        tally.add("error", "source in-0 offset 100", text)
    return tally


def held(number: int = 8, **more: Any) -> JobOutcome:
    """An attempt in which the first partition's task has held its dead letters back."""
    outcome = JobOutcome({PARTITIONS[0]: PartitionOutcome(OVER_LIMIT)}, **more)
    outcome.dead_over_limit = tally_of(number)
    return outcome


def written(number: int, **more: Any) -> JobOutcome:
    """An attempt in which the first partition's dead letters are written."""
    part = PartitionOutcome(next_offset=108, dead_letters=number, **more)
    return JobOutcome({PARTITIONS[0]: part}, dead=tally_of(number))


def beside(outcome: JobOutcome, other: PartitionOutcome) -> JobOutcome:
    """An attempt with an outcome of the second partition."""
    outcome.partitions[PARTITIONS[1]] = other
    return outcome


@pytest.mark.parametrize(
    "attempts",
    [
        [held()],
        [beside(held(), PartitionOutcome(NOT_ATTEMPTED))],
        [written(8)],
        # What is known of the second partition comes later.
        [beside(held(), PartitionOutcome(REJECTED)), held()],
        [beside(held(), PartitionOutcome(RETRIED)), held()],
        [beside(written(4), PartitionOutcome(REJECTED)), held(4)],
        [held(left_out_others=True), written(8)],
        # The next attempt skips what the first has written.
        [beside(written(4), PartitionOutcome(REJECTED)), written(4, skipped=4)],
    ],
)
def test_nothing_but_one_error(attempts: Attempts) -> None:
    for number in range(1, len(attempts)):
        limit().check(attempts[:number])
    with pytest.raises(
        WriteError, match=r"all 8 rows of the batch .*with one error: 8 times: away"
    ):
        limit().check(attempts)
    limit(most=1.0).check(attempts)
    # An earlier attempt has written something.
    limit({**FRESH, PARTITIONS[1]: 101}).check(attempts)


@pytest.mark.parametrize(
    ("attempts", "defer_dead_letters"),
    [
        ([], True),
        ([beside(held(), PartitionOutcome(REJECTED))], True),
        ([beside(held(), PartitionOutcome(RETRIED))], True),
        ([beside(held(), PartitionOutcome(rows=1, next_offset=101))], False),
        ([held(left_out_others=True)], False),
        ([held(), held(left_out_others=True), held()], False),
        ([beside(written(4), PartitionOutcome(REJECTED)), written(1, skipped=5)], False),
    ],
)
def test_tasks_hold_back_until_there_is_something_else(
    attempts: Attempts, *, defer_dead_letters: bool
) -> None:
    planned = limit().plan(PLANNED, None, attempts)
    assert {plan.defer_dead_letters for plan in planned.partitions.values()} == {defer_dead_letters}
    planned = limit(most=1.0).plan(PLANNED, None, attempts)
    assert not any(plan.defer_dead_letters for plan in planned.partitions.values())


def test_two_errors_hold_nothing_back() -> None:
    first = held()
    first.dead_over_limit.include(tally_of(1, "no number"))
    limit().check([first])
    # In all further attempts, in which only one of them may be left.
    for attempts in ([first], [first, held()]):
        planned = limit().plan(PLANNED, None, attempts).partitions
        assert not any(plan.defer_dead_letters for plan in planned.values())


def test_the_remaining_limit_goes_to_tasks_that_held_back() -> None:
    first = beside(held(), PartitionOutcome(RETRIED))
    last = JobOutcome({PARTITIONS[1]: PartitionOutcome(OVER_LIMIT)})
    planned = limit().plan(PLANNED, None, [first, last]).partitions
    assert [planned[partition].max_dead_letters for partition in PARTITIONS] == [0, 200]


def test_the_share_is_that_of_the_whole_batch() -> None:
    # Of 2,000 records 1,500 are written; the rest has more than a tenth.
    committed = {PARTITIONS[0]: 1_100, PARTITIONS[1]: 600}
    planned = limit(committed).plan(PLANNED, None, []).partitions
    assert [planned[partition].max_dead_letters for partition in PARTITIONS] == [0, 200]
    limit(committed).check([written(200)])
    with pytest.raises(WriteError, match=r"201 of 2000 records .*allows 200"):
        limit(committed).check([written(201)])


def test_only_dead_letters_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    limit().log([])
    limit().log([held()])  # not written
    assert not caplog.records
    limit().log([written(8)])
    assert "batch 3 of group group: 8 dead letters in topic dlq: 8 error" in caplog.text
