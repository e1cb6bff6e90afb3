"""The staged delivery on the driver: only one copy of a batch counts, whichever runs interfere."""

import json
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from kafka.protocol.consumer import OffsetFetchRequest

from spark_eos import LostRecords, errors
from spark_eos._exactly_once.delivery import Batch
from spark_eos._kafka.progress_topic import first_position
from spark_eos._kafka.topic_partition import TopicPartition
from support.flow import Flow
from support.planting import remove
from support.proxy import KafkaProxy, Rule
from support.proxy_faults import Rewrite
from support.runs import nothing
from support.staged_runs import Copies, StagedQuery, StagedRuns, staged_query

_BUCKETS = 2


class _GoneError(Exception):
    """Like Spark's error for a frame that can't be run again."""


class _KilledError(Exception):
    """The run ends here."""


def _raises(error: type[Exception]) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


def _dies_once_staged(staged: StagedQuery) -> None:
    with staged.run() as runs, pytest.raises(_KilledError):
        runs.batch(while_planned=_raises(_KilledError))


def _writes_the_rest(staged: StagedQuery, batches: int = 1) -> StagedRuns:
    with staged.run() as runs:
        for _ in range(batches):
            runs.batch()
        runs.written_once()
    return runs


def test_batches_restarts_and_a_batch_without_rows(staged: StagedQuery) -> None:
    with staged.run() as runs:
        runs.batch()
        runs.copies.empty = True
        report = runs.batch()
        assert (report.rows_written, report.transactions, report.attempts) == (0, 0, 0)
        runs.copies.empty = False
    with staged.run() as runs:
        runs.batch()
        first, _empty, last = runs.copies.rows
        runs.written(first, last)
        assert runs.copies.drained == 0


def test_a_repeated_batch_uses_its_copy_and_runs_for_its_state(
    staged: StagedQuery,
) -> None:
    with staged.run() as runs:
        runs.batch(finish=False)
    with staged.run() as runs:
        report = runs.batch()
        # All rows are written, so the copy is not even read.
        assert (report.rows_written, report.rows_skipped) == (0, 0)
        assert (len(runs.copies.rows), runs.copies.drained) == (1, 1)
        runs.batch()
        runs.written_once()


def test_a_written_batch_does_not_need_its_copy(staged: StagedQuery) -> None:
    """An operator may have restored the checkpoint without it."""
    with staged.run() as runs:
        runs.batch(finish=False)
        values = sorted(runs.flow.values())
        ((name, rows),) = runs.copies.rows.items()
    del staged.copies.rows[name]
    with staged.run() as runs:
        report = runs.batch()
        assert (report.rows_written, runs.copies.drained) == (0, 1)
        assert len(values) == sum(rows)
        assert sorted(runs.flow.values()) == values


def test_runs_that_die_while_staging_leave_one_copy(staged: StagedQuery) -> None:
    staged.copies.while_staged = _raises(_KilledError)
    for _ in range(3):
        with staged.run() as runs, pytest.raises(_KilledError):
            runs.batch()
    staged.copies.while_staged = nothing
    with staged.run() as runs:
        runs.batch()
        *abandoned, last = runs.copies.rows
        assert len(abandoned) == 3
        assert not any(runs.copies.rows[name] for name in abandoned)
        runs.written(last)


def test_a_batch_of_which_a_row_is_missing_needs_its_copy(staged: StagedQuery) -> None:
    _dies_once_staged(staged)
    staged.copies.rows.clear()
    with staged.run() as runs, pytest.raises(errors.CheckpointError, match="were removed"):
        runs.batch()


@pytest.mark.parametrize("how", ["all texts", "that something was staged"])
def test_a_coordinator_that_returns_older_texts(
    proxied_flow: Flow, proxy: KafkaProxy, how: str
) -> None:
    """A new coordinator may, until its high watermark reaches the old one's."""
    staged = staged_query(proxied_flow)

    def older(_request: Any, answer: Any) -> None:
        for topic in answer.groups[0].topics:
            for one in topic.partitions:
                if earlier := before.get(TopicPartition(topic.name, one.partition_index)):
                    one.committed_offset, one.metadata = earlier.offset, earlier.metadata

    def as_it_began(_request: Any, answer: Any) -> None:
        topics = [each for each in answer.groups[0].topics if each.name == staged.held_by]
        for one in (partition for topic in topics for partition in topic.partitions):
            text = json.loads(one.metadata)
            text.pop("staged", None)
            one.committed_offset, one.metadata = first_position(0), json.dumps(text)

    def answers(change: Callable[[Any, Any], None]) -> Rule:
        fault = Rewrite(change)
        return proxy.on(
            OffsetFetchRequest, fault, times=None, where=lambda it: it.groups[0].topics is None
        )

    if how == "all texts":
        staged.writes()
        before = proxied_flow.group_commits()
    with staged.run() as runs:
        runs.batch(finish=False)
        if how != "all texts":
            stale = answers(as_it_began)
            with pytest.raises(errors.CheckpointError, match="delivery='staged'"):
                runs.run._delivery._check_nothing_staged()  # type: ignore[attr-defined]
            assert stale.hits
            return
    stale = answers(older)
    with staged.run() as runs:
        report = runs.batch()
        assert (report.rows_written, runs.copies.drained) == (0, 1)
        assert stale.hits
        runs.written_once()


def test_a_copy_is_written_even_if_its_frame_can_not_be_rerun(staged: StagedQuery) -> None:
    """For example, the source's records are deleted. With a copy written, only state is missing."""
    _dies_once_staged(staged)
    assert staged.flow.values() == []
    staged.copies.while_drained = _raises(_GoneError)
    for _ in range(2):
        with staged.run() as runs:
            with pytest.raises(_GoneError):
                runs.batch()
            runs.written_once()
    staged.copies.while_drained = lambda: None
    _writes_the_rest(staged, 2)


def test_records_deleted_before_staging_are_reported(
    staged: StagedQuery, caplog: pytest.LogCaptureFixture
) -> None:
    source = staged.flow.source
    staged.flow.produce(range(10), partition=0)
    with staged.run() as runs:
        runs.batch()
        remove(staged.flow, source, 0, 5)
        with pytest.raises(errors.RecordsLostError) as caught:
            runs.batch()
    assert f"{source}-0 offsets 0 to 0" in str(caught.value)
    assert "fail_on_data_loss=False" in str(caught.value)
    # There is no offset to set of a staged query's source.
    assert "reset-offsets" not in str(caught.value)
    with staged.run(fail_on_data_loss=False) as runs:
        report = runs.batch()
        assert report.lost == (LostRecords(source, 0, 0, 1),)
        assert f"{source}-0 offsets 0 to 0" in caplog.text
        assert runs.batch().lost == (LostRecords(source, 0, 1, 2),)
        # Of these Spark may have read some before they were deleted.
        runs.copies.while_staged = lambda: remove(staged.flow, source, 1, 3)
        staged.flow.produce(range(10), partition=1)
        assert runs.batch().lost[-1] == LostRecords(source, 1, 2, 3, certain=False)
        runs.copies.while_staged = lambda: None
        # One that is added begins at its first record, as all do.
        staged.flow.add_partitions(3)
        staged.flow.produce(range(10), partition=2)
        remove(staged.flow, source, 2, 3)
        assert LostRecords(source, 2, 0, 3) in runs.batch().lost


def test_records_deleted_before_a_repetition_miss_only_the_state(
    staged: StagedQuery, caplog: pytest.LogCaptureFixture
) -> None:
    staged.flow.produce(range(10), partition=0)
    staged.writes()
    _dies_once_staged(staged)
    remove(staged.flow, staged.flow.source, 0, 5)
    with staged.run() as runs:
        with pytest.raises(errors.RecordsLostError, match="missing from the query's state"):
            runs.batch()
        runs.written_once()
        assert runs.copies.drained == 0
    with staged.run(fail_on_data_loss=False) as runs:
        lost = LostRecords(staged.flow.source, 0, 0, 1, certain=False)
        assert runs.batch().lost == (lost,)
        assert runs.copies.drained == 1
        assert "missing from the query's state" in caplog.text
        runs.written_once()


@pytest.mark.parametrize("fewer", [0, 2])
def test_a_repeated_batch_that_differs_from_its_copy_is_reported(
    fewer: int, staged: StagedQuery, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy is written; the query's state comes from running the frame again."""
    _dies_once_staged(staged)
    staged.copies.rows_less = fewer
    _writes_the_rest(staged)
    warned = "computed again for the query's state and had 4 rows, but its copy" in caplog.text
    assert warned == bool(fewer)


def test_a_stale_run_with_its_own_copy_makes_no_staged_commit(
    staged: StagedQuery,
) -> None:
    """Meanwhile, a newer run has staged and written the batch, and has left."""
    with staged.run() as older:
        older.batch()

        def another_comes_and_goes() -> None:
            older.copies.while_staged = lambda: None
            with staged.run() as newer:
                newer.batch()

        older.copies.while_staged = another_comes_and_goes
        with pytest.raises(errors.FencedByNewerRunError):
            older.batch()
        first, _olders, newers = older.copies.rows
        older.written(first, newers)


def test_a_stale_run_that_wakes_up_while_relaying_writes_no_row(staged: StagedQuery) -> None:
    """A newer run has finished the batch from the same copy, and the next batch."""
    with staged.run() as older:

        def another_comes_and_goes() -> None:
            with staged.run() as newer:
                newer.batch()
                newer.batch()

        with pytest.raises(errors.FencedByNewerRunError):
            older.batch(while_planned=another_comes_and_goes)
        older.written_once()


def test_a_concurrent_run_is_not_mistaken_for_an_old_checkpoint(
    staged: StagedQuery,
) -> None:
    """Spark planned its batch before the run took over; until then, the other run continued."""
    with staged.run() as older:
        for _ in range(3):
            older.batch()
        written = sorted(staged.flow.values())
        with (
            staged.run() as newer,
            pytest.raises(errors.FencedByNewerRunError, match="batch 2"),
        ):
            newer.run.write(Batch(1, _never, newer.log))
        assert sorted(staged.flow.values()) == written
        # The older run was fenced, but joins again for a batch that is still its own.
        older.batch()
        older.written_once()


def _never(*_: object, **__: object) -> NoReturn:
    raise AssertionError("a task was run")


def test_a_staged_commit_by_another_client_names_no_copy(staged: StagedQuery) -> None:
    with staged.run() as runs:
        runs.batch()
        with pytest.raises(errors.CheckpointError, match="files of it were removed"):
            runs.batch(buckets_read=lambda _: False)
    found = staged.flow.group_commits()[TopicPartition(staged.held_by, 0)]
    *_, copy = staged.copies.rows
    forged = found.metadata.replace(copy, "../../../payroll")
    assert forged != found.metadata
    staged.copies.rows["../../../payroll"] = [3] * _BUCKETS
    staged.sets({0: found.offset}, forged)
    staged.refuses(errors.OffsetsLostError, ["a text that no run of the query has written"])
    # The operator puts the staged commit's text back.
    staged.sets({0: found.offset}, found.metadata)
    del staged.copies.rows["../../../payroll"]
    _writes_the_rest(staged)


def test_a_missing_file_fails_the_batch_before_its_end_commits(staged: StagedQuery) -> None:
    removed = pytest.raises(errors.CheckpointError, match="files of it were removed or changed")
    with staged.run() as runs, removed:
        runs.batch(buckets_read=lambda file: file != 2)
    _writes_the_rest(staged)


def test_another_checkpoint_is_refused_until_group_is_deleted(staged: StagedQuery) -> None:
    staged.writes()
    staged.checkpoint = None
    with staged.run() as runs:
        runs.checkpoint["metadata"] = '{"id": "another"}'
        runs.refuses(errors.CheckpointError, ["without its own checkpoint"])
    staged.loses_all()
    _writes_the_rest(staged)


def test_an_older_checkpoint_is_refused_until_offsets_are_set(staged: StagedQuery) -> None:
    staged.writes()
    with staged.keeping_checkpoint():
        staged.writes()
        staged.writes()
    staged.refuses(errors.CheckpointError, ["an older checkpoint was restored"])
    written = len(staged.flow.values())
    staged.sets(dict.fromkeys(range(_BUCKETS + 1), 0))
    # Knowingly: the batch is written a second time, as it is now.
    assert staged.writes().rows_written == 6 * _BUCKETS
    assert len(staged.flow.values()) == written + 6 * _BUCKETS


def test_a_progress_topic_that_has_grown(staged: StagedQuery) -> None:
    """Also if the repeated batch was staged before."""
    with staged.run() as runs:
        runs.batch()
        runs.batch(finish=False)
    more = _BUCKETS + 2
    staged.flow.broker.add_partitions(staged.held_by, more + 1)
    with staged.run() as runs:
        runs.batch()
        report = runs.batch()
        assert report.rows_written == 5 * more
    assert len(staged.flow.values()) == 3 * _BUCKETS + 4 * _BUCKETS + 5 * more


def test_copies_of_later_batches_are_not_swept(staged: StagedQuery) -> None:
    staged.copies = Copies({"0-aaaaaaaa": [3, 3], "7-bbbbbbbb": [4, 4]})
    with staged.run() as runs:
        runs.batch()
        runs.batch()
    assert staged.copies.rows["0-aaaaaaaa"] == []
    assert staged.copies.rows["7-bbbbbbbb"] == [4, 4]
