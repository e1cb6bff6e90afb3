"""The staged delivery on the driver: only one copy of a batch counts, whichever runs interfere."""

import json
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import pytest
from kafka.protocol.consumer import OffsetFetchRequest

from spark_eos import LostRecords, errors
from spark_eos._exactly_once.delivery import Batch
from spark_eos._kafka.offsets import all_group_offsets
from spark_eos._kafka.progress_topic import first_position
from spark_eos._kafka.topic_partition import TopicPartition
from support.flow import Flow
from support.groups import delete_group, delete_offsets, set_offsets
from support.members import deadline
from support.planting import remove
from support.proxy import KafkaProxy
from support.proxy_faults import Rewrite
from support.queries import until
from support.staged_runs import Copies, StagedRuns, progress_topic, staged_run

_BUCKETS = 2


@pytest.fixture
def staged(flow: Flow) -> Flow:
    """A flow with a progress topic."""
    flow.broker.create_topic(progress_topic(flow), _BUCKETS + 1)
    return flow


def _set_offsets(flow: Flow, offsets: dict[int, int]) -> None:
    """Sets offsets like an operator, once the group has no members."""
    until(lambda: flow.members() == [], lambda: "the members to leave")
    topic = progress_topic(flow)
    found = {TopicPartition(topic, index): offset for index, offset in offsets.items()}
    set_offsets(flow.bootstrap_servers, flow.group_id, found)


def _delete_group(flow: Flow) -> None:
    until(lambda: flow.members() == [], lambda: "the members to leave")
    delete_group(flow.bootstrap_servers, flow.group_id)


def _again(runs: StagedRuns, **options: Any) -> AbstractContextManager[StagedRuns]:
    """Another run of a query, from the state that an earlier one left."""
    return staged_run(runs.flow, checkpoint=runs.checkpoint, copies=runs.copies, **options)


def _refuses(earlier: StagedRuns, error: type[Exception], match: str, **options: Any) -> None:
    with _again(earlier, **options) as runs, pytest.raises(error, match=match):
        runs.batch()


def test_batches_restarts_and_a_batch_without_rows(staged: Flow) -> None:
    with staged_run(staged) as runs:
        runs.batch()
        runs.copies.empty = True
        report = runs.batch()
        assert (report.rows_written, report.transactions, report.attempts) == (0, 0, 0)
        runs.copies.empty = False
    with _again(runs) as runs:
        runs.batch()
        first, _empty, last = runs.copies.rows
        runs.written(first, last)
        assert runs.copies.drained == 0


def test_a_repeated_batch_uses_its_copy_and_runs_for_its_state(
    staged: Flow,
) -> None:
    with staged_run(staged) as runs:
        runs.batch(finish=False)
    with _again(runs) as runs:
        report = runs.batch()
        assert (report.rows_written, report.rows_skipped) == (0, 3 * _BUCKETS)
        assert (len(runs.copies.rows), runs.copies.drained) == (1, 1)
        runs.batch()
        runs.written(*runs.copies.rows)


def test_a_coordinator_that_returns_older_texts_hides_no_copy(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    """A new coordinator may, until its high watermark reaches the old one's."""
    flow = proxied_flow
    flow.broker.create_topic(progress_topic(flow), _BUCKETS + 1)

    def older(_request: Any, answer: Any) -> None:
        for topic in answer.groups[0].topics:
            for one in topic.partitions:
                if earlier := before.get(TopicPartition(topic.name, one.partition_index)):
                    one.committed_offset, one.metadata = earlier.offset, earlier.metadata

    with staged_run(flow) as runs:
        runs.batch()
        with flow.connections() as connections:
            before = all_group_offsets(connections, flow.group_id, deadline())
        runs.batch(finish=False)
    stale = proxy.on(
        OffsetFetchRequest, Rewrite(older), times=None, where=lambda it: it.groups[0].topics is None
    )
    with _again(runs) as runs:
        report = runs.batch()
        assert (report.rows_written, report.rows_skipped) == (0, 4 * _BUCKETS)
        assert stale.hits
        runs.written(*runs.copies.rows)


def test_older_texts_do_not_hide_that_something_was_staged(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    flow = proxied_flow
    topic = progress_topic(flow)
    flow.broker.create_topic(topic, _BUCKETS + 1)

    def as_it_began(_request: Any, answer: Any) -> None:
        for one in (p for t in answer.groups[0].topics if t.name == topic for p in t.partitions):
            text = json.loads(one.metadata)
            text.pop("staged", None)
            one.committed_offset, one.metadata = first_position(0), json.dumps(text)

    with staged_run(flow) as runs:
        runs.batch(finish=False)
        stale = proxy.on(
            OffsetFetchRequest,
            Rewrite(as_it_began),
            times=None,
            where=lambda it: it.groups[0].topics is None,
        )
        with pytest.raises(errors.CheckpointError, match="delivery='staged'"):
            runs.run._delivery._check_nothing_staged()  # type: ignore[attr-defined]
        assert stale.hits


class _GoneError(Exception):
    """Like Spark's error for a frame that can't be run again."""


def _can_not_be_read() -> NoReturn:
    raise _GoneError


def _killed() -> NoReturn:
    raise _KilledError


class _KilledError(Exception):
    """The run ends here."""


def test_a_copy_is_written_even_if_its_frame_can_not_be_rerun(staged: Flow) -> None:
    """For example, the source's records are deleted. With a copy written, only state is missing."""
    with staged_run(staged) as runs:
        with pytest.raises(_KilledError):
            runs.batch(while_planned=_killed)
        assert staged.values() == []
    runs.copies.while_drained = _can_not_be_read
    for _ in range(2):
        with _again(runs) as runs:
            with pytest.raises(_GoneError):
                runs.batch()
            runs.written(*runs.copies.rows)
    runs.copies.while_drained = lambda: None
    with _again(runs) as runs:
        runs.batch()
        runs.batch()
        runs.written(*runs.copies.rows)


def test_records_deleted_before_staging_are_reported(
    staged: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    staged.produce(range(10), partition=0)
    with staged_run(staged) as runs:
        runs.batch()
        remove(staged, staged.source, 0, 5)
        with pytest.raises(errors.RecordsLostError) as caught:
            runs.batch()
        assert f"{staged.source}-0 offsets 0 to 0" in str(caught.value)
        assert "fail_on_data_loss=False" in str(caught.value)
        # There is no offset to set of a staged query's source.
        assert "reset-offsets" not in str(caught.value)
    with _again(runs, fail_on_data_loss=False) as runs:
        report = runs.batch()
        assert report.lost == (LostRecords(staged.source, 0, 0, 1),)
        assert "0 offsets 0 to 0 were deleted before they were read, and are not" in caplog.text
        assert runs.batch().lost == (LostRecords(staged.source, 0, 1, 2),)
        # Of these Spark may have read some before they were deleted.
        runs.copies.while_staged = lambda: remove(staged, staged.source, 1, 3)
        staged.produce(range(10), partition=1)
        assert runs.batch().lost[-1] == LostRecords(staged.source, 1, 2, 3, certain=False)
        runs.copies.while_staged = lambda: None
        # One that is added begins at its first record, as all do.
        staged.partitions = 3
        staged.broker.add_partitions(staged.source, 3)
        staged.produce(range(10), partition=2)
        remove(staged, staged.source, 2, 3)
        assert LostRecords(staged.source, 2, 0, 3) in runs.batch().lost


def test_records_deleted_before_a_repetition_miss_only_the_state(
    staged: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    staged.produce(range(10), partition=0)
    with staged_run(staged) as runs:
        runs.batch()
        with pytest.raises(_KilledError):
            runs.batch(while_planned=_killed)
    remove(staged, staged.source, 0, 5)
    with _again(runs) as runs:
        with pytest.raises(errors.RecordsLostError, match="missing from the query's state"):
            runs.batch()
        runs.written(*runs.copies.rows)
        assert runs.copies.drained == 0
    with _again(runs, fail_on_data_loss=False) as runs:
        lost = LostRecords(staged.source, 0, 0, 1, certain=False)
        assert runs.batch().lost == (lost,)
        assert runs.copies.drained == 1
        assert "missing from the query's state" in caplog.text
        runs.written(*runs.copies.rows)


@pytest.mark.parametrize("fewer", [0, 2])
def test_a_repeated_batch_that_differs_from_its_copy_is_reported(
    fewer: int, staged: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy is written; the query's state comes from running the frame again."""
    with staged_run(staged) as runs, pytest.raises(_KilledError):
        runs.batch(while_planned=_killed)
    runs.copies.rows_less = fewer
    with _again(runs) as runs:
        runs.batch()
        runs.written(*runs.copies.rows)
    warned = "computed again for the query's state and had 4 rows, but its copy" in caplog.text
    assert warned == bool(fewer)


def test_a_source_topic_that_is_recreated_is_refused(staged: Flow) -> None:
    staged.produce(range(10), partition=0)
    with staged_run(staged, fail_on_data_loss=False) as runs:
        runs.batch()
    staged.recreate(staged.source)
    words = "was deleted and recreated"
    _refuses(runs, errors.OffsetsLostError, words, fail_on_data_loss=False)


def test_a_stale_run_with_its_own_copy_makes_no_staged_commit(
    staged: Flow,
) -> None:
    """Meanwhile, a newer run has staged and written the batch, and has left."""
    with staged_run(staged) as older:
        older.batch()

        def another_comes_and_goes() -> None:
            older.copies.while_staged = lambda: None
            with staged_run(staged, checkpoint=older.checkpoint, copies=older.copies) as newer:
                newer.batch()

        older.copies.while_staged = another_comes_and_goes
        with pytest.raises(errors.FencedByNewerRunError, match="a newer run"):
            older.batch()
        first, _olders, newers = older.copies.rows
        older.written(first, newers)


def test_a_stale_run_that_wakes_up_while_relaying_writes_no_row(staged: Flow) -> None:
    """A newer run has finished the batch from the same copy, and the next batch."""
    with staged_run(staged) as older:

        def another_comes_and_goes() -> None:
            with staged_run(staged, checkpoint=older.checkpoint, copies=older.copies) as newer:
                newer.batch()
                newer.batch()

        with pytest.raises(errors.FencedByNewerRunError, match="a newer run"):
            older.batch(while_planned=another_comes_and_goes)
        older.written(*older.copies.rows)


def test_a_concurrent_run_is_not_mistaken_for_an_old_checkpoint(
    staged: Flow,
) -> None:
    """Spark planned its batch before the run took over; until then, the other run continued."""
    with staged_run(staged) as older:
        for _ in range(3):
            older.batch()
        written = sorted(staged.values())
        with (
            staged_run(staged, checkpoint=older.checkpoint, copies=older.copies) as newer,
            pytest.raises(errors.FencedByNewerRunError, match="has gone on to batch 2 meanwhile"),
        ):
            newer.run.write(Batch(1, _never, newer.log))
        assert sorted(staged.values()) == written
        # It was fenced, and joins again for a batch that is its own still.
        older.batch()
        older.written(*older.copies.rows)


def test_a_staged_commit_by_another_client_names_no_copy(staged: Flow) -> None:
    commit_partition = TopicPartition(progress_topic(staged), 0)
    with staged_run(staged) as runs:
        runs.batch()
        with pytest.raises(errors.CheckpointError, match="files of it were removed"):
            runs.batch(buckets_read=lambda _: False)
    until(lambda: staged.members() == [], lambda: "the members to leave")
    with staged.connections() as connections:
        found = all_group_offsets(connections, staged.group_id, deadline())[commit_partition]
    *_, copy = runs.copies.rows
    forged = {commit_partition: found.metadata.replace(copy, "../../../payroll")}
    assert forged[commit_partition] != found.metadata
    runs.copies.rows["../../../payroll"] = [3] * _BUCKETS
    servers = staged.bootstrap_servers
    set_offsets(servers, staged.group_id, {commit_partition: found.offset}, forged)
    _refuses(runs, errors.OffsetsLostError, "a text that no run of the query has written")
    assert len(staged.values()) == 3 * _BUCKETS
    # The operator puts the staged commit's text back.
    until(lambda: staged.members() == [], lambda: "the members to leave")
    set_offsets(
        servers,
        staged.group_id,
        {commit_partition: found.offset},
        {commit_partition: found.metadata},
    )
    del runs.copies.rows["../../../payroll"]
    with _again(runs) as runs:
        runs.batch()
        runs.written(*runs.copies.rows)


def _never(*_: object, **__: object) -> NoReturn:
    raise AssertionError("a task was run")


def test_a_missing_file_fails_the_batch_before_its_end_commits(staged: Flow) -> None:
    removed = pytest.raises(errors.CheckpointError, match="files of it were removed or changed")
    with staged_run(staged) as runs, removed:
        runs.batch(buckets_read=lambda file: file != 2)
    with _again(runs) as runs:
        runs.batch()
        runs.written(*runs.copies.rows)


def test_another_checkpoint_is_refused_until_group_is_deleted(
    staged: Flow,
) -> None:
    with staged_run(staged) as runs:
        runs.batch()
        (first,) = runs.copies.rows
        copies = runs.copies
    with staged_run(staged, copies=copies) as runs:
        runs.checkpoint["metadata"] = '{"id": "another"}'
        checkpoint = runs.checkpoint
        with pytest.raises(errors.CheckpointError, match="without its own checkpoint"):
            runs.batch()
        runs.written(first)
    _delete_group(staged)
    with staged_run(staged, checkpoint=checkpoint, copies=copies) as runs:
        runs.batch()
        runs.written(*copies.rows)


def test_an_older_checkpoint_is_refused_until_offsets_are_set(
    staged: Flow,
) -> None:
    with staged_run(staged) as runs:
        runs.batch()
        older = dict(runs.checkpoint)
        runs.batch()
        runs.batch()
    runs.checkpoint.clear()
    runs.checkpoint.update(older)
    with _again(runs) as runs:
        with pytest.raises(errors.CheckpointError, match="an older checkpoint was restored"):
            runs.batch()
        written = len(staged.values())
    _set_offsets(staged, dict.fromkeys(range(_BUCKETS + 1), 0))
    with _again(runs) as runs:
        report = runs.batch()
        # Knowingly: the batch is written a second time, as it is now.
        assert report.rows_written == 6 * _BUCKETS
        assert len(staged.values()) == written + report.rows_written


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ({0: 5}, "the staged commit of group"),
        ({1: first_position(1)}, "is not fully written"),
    ],
    ids=["the staged commit", "a file's"],
)
def test_offsets_set_by_another_client_are_refused(
    staged: Flow, offsets: dict[int, int], words: str
) -> None:
    with staged_run(staged) as runs:
        runs.batch()
        runs.batch()
    _set_offsets(staged, offsets)
    _refuses(runs, errors.OffsetsLostError, words)


def test_a_bucket_without_an_offset_names_the_unknown_batch(staged: Flow) -> None:
    with staged_run(staged) as runs:
        runs.batch()
    until(lambda: staged.members() == [], lambda: "the members to leave")
    lost = TopicPartition(progress_topic(staged), 1)
    delete_offsets(staged.bootstrap_servers, staged.group_id, [lost])
    words = f"no committed offset for {lost}, although .* not known whether batch 1 was written"
    _refuses(runs, errors.OffsetsLostError, words)


def test_a_progress_topic_that_has_grown(staged: Flow) -> None:
    """Also if the repeated batch was staged before."""
    with staged_run(staged) as runs:
        runs.batch()
        runs.batch(finish=False)
    more = _BUCKETS + 2
    staged.broker.add_partitions(progress_topic(staged), more + 1)
    with _again(runs) as runs:
        runs.batch()
        report = runs.batch()
        assert report.rows_written == 5 * more
    assert len(staged.values()) == 3 * _BUCKETS + 4 * _BUCKETS + 5 * more


def test_a_progress_topic_that_was_recreated_is_refused(staged: Flow) -> None:
    with staged_run(staged) as runs:
        runs.batch()
    staged.recreate(progress_topic(staged), _BUCKETS + 1)
    _refuses(runs, errors.OffsetsLostError, "recreated")


def test_copies_of_later_batches_are_not_swept(staged: Flow) -> None:
    copies = Copies({"0-aaaaaaaa": [3, 3], "7-bbbbbbbb": [4, 4]})
    with staged_run(staged, copies=copies) as runs:
        runs.batch()
        runs.batch()
    assert copies.rows["0-aaaaaaaa"] == []
    assert copies.rows["7-bbbbbbbb"] == [4, 4]
