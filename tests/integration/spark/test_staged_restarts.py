"""Staged queries that continue after a failure or after changes by users or operators."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_eos._exactly_once.batch import Run
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._spark import classic
from spark_eos._spark.classic import ClassicRuntime
from spark_eos.errors import OffsetsLostError, SparkEosError, WriteError
from support import groups, staging
from support.flow import Flow
from support.members import started
from support.staging import Written, failing_once_staged, record, run_staged

_BATCH = 30


def _produced(flow: Flow, batches: range) -> None:
    flow.produce(map(record, range(batches.start * _BATCH, batches.stop * _BATCH)))


def _options(flow: Flow) -> dict[str, Any]:
    return {"progress_topic": f"progress-{flow.name}", "progress_partitions": 3}


def _run(
    spark: SparkSession,
    flow: Flow,
    transform: Callable[[DataFrame], DataFrame] = staging.repartitioned,
) -> Written:
    return run_staged(spark, flow, transform, max_offsets=_BATCH, **_options(flow))


def _numbers(flow: Flow) -> Counter[int]:
    return Counter(row["n"] for row in map(json.loads, flow.values()))


def _set_offsets(flow: Flow, offsets: Mapping[int, int]) -> None:
    """Like kafka-consumer-groups.sh: without a text."""
    topic = _options(flow)["progress_topic"]
    wanted = {TopicPartition(topic, index): offset for index, offset in offsets.items()}
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, wanted)


@pytest.mark.slow
def test_offsets_set_to_0_let_an_older_checkpoint_go_on(
    flow: Flow, spark: SparkSession, tmp_path: Path
) -> None:
    _produced(flow, range(1))
    _run(spark, flow)
    shutil.copytree(flow.checkpoint, tmp_path / "older")
    _produced(flow, range(1, 3))
    _run(spark, flow)
    shutil.rmtree(flow.checkpoint)
    shutil.copytree(tmp_path / "older", flow.checkpoint)
    with pytest.raises(Exception, match=r"query is at batch 1.*--to-earliest --execute"):
        _run(spark, flow)
    # Some of them only: the others are positions in a copy that nobody knows any more.
    _set_offsets(flow, {0: 1 << 32})
    with pytest.raises(Exception, match="names no copy of batch 1"):
        _run(spark, flow)
    assert _numbers(flow) == Counter(range(3 * _BATCH))
    _set_offsets(flow, dict.fromkeys(range(3), 0))
    _run(spark, flow)
    assert _numbers(flow) == Counter([*range(3 * _BATCH), *range(_BATCH, 3 * _BATCH)])


def _lose_staged_commit(flow: Flow) -> None:
    commit_partition = TopicPartition(_options(flow)["progress_topic"], 0)
    groups.delete_offsets(flow.bootstrap_servers, flow.group_id, [commit_partition])


@pytest.mark.slow
def test_a_staged_commit_lost_between_two_batches_is_restored(
    flow: Flow, spark: SparkSession
) -> None:
    _produced(flow, range(1))
    _run(spark, flow)
    _lose_staged_commit(flow)
    _produced(flow, range(1, 2))
    _run(spark, flow)
    assert _numbers(flow) == Counter(range(2 * _BATCH))


@pytest.mark.slow
def test_a_staged_commit_lost_within_a_batch_is_refused(flow: Flow, spark: SparkSession) -> None:
    _produced(flow, range(1))
    _run(spark, flow)
    _produced(flow, range(1, 2))
    with failing_once_staged():
        _run(spark, flow)
    _lose_staged_commit(flow)
    with pytest.raises(Exception, match=OffsetsLostError.__name__):
        _run(spark, flow)
    assert _numbers(flow) == Counter(range(_BATCH))


@pytest.mark.slow
def test_a_copy_keeps_its_columns(flow: Flow, spark: SparkSession, tmp_path: Path) -> None:
    _produced(flow, range(1))
    with failing_once_staged():
        _run(spark, flow)

    def without_key(frame: DataFrame) -> DataFrame:
        return staging.repartitioned(frame).select("value")

    copies = Path(flow.checkpoint) / "spark-eos" / "staged"
    shutil.move(copies, tmp_path / "elsewhere")
    with pytest.raises(Exception, match="files of it were removed"):
        _run(spark, flow, without_key)
    shutil.move(tmp_path / "elsewhere", copies)
    _run(spark, flow, without_key)
    assert _numbers(flow) == Counter(range(_BATCH))
    assert None not in {message.key() for message in flow.written()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "most_files", [pytest.param(classic._MOST_FILES, marks=pytest.mark.slow), 0]
)
def test_unreadable_rows_are_noticed_before_any_row_is_written(
    flow: Flow, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most_files: int
) -> None:
    """Counted from the files' footers, and by a job, as for many files."""
    monkeypatch.setattr(classic, "_MOST_FILES", most_files)
    copies = Path(flow.checkpoint) / "spark-eos" / "staged"
    run_job = ClassicRuntime.run_job

    def losing_a_file(self: ClassicRuntime, *arguments: Any) -> None:
        run_job(self, *arguments)
        min(copies.glob("*/part-*")).unlink()

    _produced(flow, range(1))
    with monkeypatch.context() as patch:
        patch.setattr(ClassicRuntime, "run_job", losing_a_file)
        with pytest.raises(Exception, match=f"with {_BATCH} rows, but .* can be read there"):
            _run(spark, flow)
    assert _numbers(flow) == Counter()
    # The staged commit does not name that copy, so the batch is staged anew.
    _run(spark, flow)
    assert _numbers(flow) == Counter(range(_BATCH))


@pytest.mark.slow
def test_a_copy_removed_by_a_newer_run_is_no_file_system_fault(
    flow: Flow, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a driver that was frozen while it staged: its successor sweeps the copy."""
    copies = Path(flow.checkpoint) / "spark-eos" / "staged"
    run_job = ClassicRuntime.run_job
    with ExitStack() as newer:

        def swept(self: ClassicRuntime, *arguments: Any) -> None:
            run_job(self, *arguments)
            newer.enter_context(started(flow))
            min(copies.glob("*/part-*")).unlink()

        _produced(flow, range(1))
        monkeypatch.setattr(ClassicRuntime, "run_job", swept)
        with pytest.raises(Exception, match="FencedByNewerRunError: group"):
            _run(spark, flow)
    assert _numbers(flow) == Counter()


@pytest.mark.slow
@pytest.mark.parametrize("error", [WriteError, OffsetsLostError])
def test_unwritten_rows_are_named_if_a_newer_run_has_the_group(
    flow: Flow, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, error: type[SparkEosError]
) -> None:
    with ExitStack() as newer:

        def run(*_: Any) -> NoReturn:
            newer.enter_context(started(flow))
            raise error("offsets 5 to 8 may not be written")

        _produced(flow, range(1))
        monkeypatch.setattr(Run, "_write_rows", run)
        with pytest.raises(Exception, match=f"{error.__name__}: offsets 5 to 8") as ended:
            _run(spark, flow)
    assert "FencedByNewerRunError" not in str(ended.value)


@pytest.mark.slow
def test_a_staged_batch_is_not_written_directly_without_its_note(
    flow: Flow, spark: SparkSession
) -> None:
    _produced(flow, range(1))

    def narrow(frame: DataFrame) -> DataFrame:
        return frame.select("source", "key", "value")

    with failing_once_staged():
        run_staged(spark, flow, narrow, delivery="staged", **_options(flow))
    shutil.rmtree(Path(flow.checkpoint) / "spark-eos" / "marker")
    with pytest.raises(Exception, match="has written with delivery='staged'"):
        run_staged(spark, flow, narrow)
    run_staged(spark, flow, narrow, delivery="staged", **_options(flow))
    assert _numbers(flow) == Counter(range(_BATCH))
