"""How many dead letters a task may write in an attempt, and its error for any more."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.dead_letter_builder import DeadLetterBuilder
from spark_eos._worker.dead_letter_settings import DeadLetterSettings
from spark_eos._worker.dead_letters import Fault
from spark_eos._worker.records import SourceRows
from spark_eos._worker.task_report import JobOutcome
from support.dead_letters import create_dead_letter_topic
from support.flow import Flow
from support.members import started, writer_settings
from support.sinks import changed
from support.writing import row_batch, task_outcome


def _write(
    flow: Flow, *batches: str, allowed: int, defer_dead_letters: bool = False, **options: Any
) -> JobOutcome:
    """Writes rows of partition 0: a row for each character, with an error for "x"."""
    flow.produce(range(sum(map(len, batches))), partition=0)

    def rows() -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in batches:
            errors = pa.array(["no id" if row == "x" else None for row in batch], pa.string())
            yield row_batch(flow, 0, *range(first, first + len(batch)), error=errors)
            first += len(batch)

    dead_letters = DeadLetterSettings(topic=create_dead_letter_topic(flow))
    settings = changed(writer_settings(flow), dead_letters=dead_letters, **options)
    with started(flow) as membership:
        limits: dict[str, Any] = {
            "max_dead_letters": allowed,
            "defer_dead_letters": defer_dead_letters,
        }
        return task_outcome(membership, settings, rows(), **limits)


def _dead_letters(flow: Flow) -> list[str]:
    return flow.merged_values(f"dlq-{flow.name}")


def test_as_many_as_are_allowed_are_written(flow: Flow) -> None:
    outcome = _write(flow, "xx.", allowed=2)
    assert outcome.unwritten == []
    assert (flow.values(), _dead_letters(flow)) == (["0/2"], ["0", "1"])
    assert flow.committed() == {0: 3}


def test_one_more_ends_the_task(flow: Flow) -> None:
    outcome = _write(flow, "xx", allowed=1)
    assert outcome.over_limit
    assert outcome.reason == "2 dead letters are more than this attempt's 1"
    assert (outcome.dead.total, outcome.dead_over_limit.total) == (0, 2)
    assert not outcome.left_out_others
    assert (_dead_letters(flow), flow.committed()) == ([], {})


def test_those_of_earlier_transactions_count(flow: Flow) -> None:
    outcome = _write(flow, "xx.x", allowed=2, max_transaction_records=2)
    assert outcome.over_limit
    assert (outcome.dead.total, outcome.dead_over_limit.total) == (2, 1)
    assert outcome.left_out_others
    assert outcome.partitions[TopicPartition(flow.source, 0)].next_offset == 2
    assert (flow.values(), _dead_letters(flow)) == ([], ["0", "1"])
    assert flow.committed() == {0: 2}


@pytest.mark.parametrize(("after", "dead_letters", "others"), [("xx", 4, False), ("x.", 3, True)])
def test_rows_after_too_many_dead_letters_are_still_checked(
    flow: Flow, after: str, dead_letters: int, *, others: bool
) -> None:
    outcome = _write(flow, "xx", after, allowed=1, max_transaction_records=2)
    assert outcome.over_limit
    assert outcome.dead_over_limit.total == dead_letters
    assert outcome.left_out_others == others
    assert (flow.values(), _dead_letters(flow)) == ([], [])


def test_only_dead_letters_of_one_error_are_held_back(flow: Flow) -> None:
    outcome = _write(flow, "xxxxxx", allowed=10, defer_dead_letters=True)
    assert outcome.over_limit
    assert outcome.reason == "all 6 rows so far are dead letters with one error"
    assert (_dead_letters(flow), flow.committed()) == ([], {})


def test_they_are_not_held_back_if_a_row_was_written_before(flow: Flow) -> None:
    outcome = _write(
        flow, ".xxxxxx", allowed=10, defer_dead_letters=True, max_transaction_records=1
    )
    assert outcome.unwritten == []
    assert (flow.values(), len(_dead_letters(flow))) == (["0/0"], 6)
    assert flow.committed() == {0: 7}


def test_no_more_are_made_than_are_allowed(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may hold a large record, although its row is small."""
    made: list[int] = []
    make = DeadLetterBuilder._dead_letter

    def noting(builder: DeadLetterBuilder, part: SourceRows, row: int, fault: Fault) -> Any:
        made.append(row)
        return make(builder, part, row, fault)

    monkeypatch.setattr(DeadLetterBuilder, "_dead_letter", noting)
    outcome = _write(flow, "x" * 100, allowed=2)
    assert outcome.over_limit
    assert outcome.reason == "99 dead letters are more than this attempt's 2"
    assert made == []
