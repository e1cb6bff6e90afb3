"""Checkpoints on a real S3 server: requests per batch, and crashes."""

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_eos import BatchReport
from spark_eos._checkpoint.files import ArrowFiles
from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._spark.spark_files import HadoopFiles
from spark_eos.testing import spark_session
from support import staging
from support.flow import Flow
from support.object_store import ObjectStore
from support.queries import QueryProcess, Transform, relay, run_available
from support.staging import record

pytestmark = [
    pytest.mark.skipif(
        "os.environ.get('SPARK_EOS_CHECKPOINTS') != 's3a'", reason="make test-stores runs it"
    ),
    pytest.mark.slow,
]

# Consecutive batches of a run: the first ones only warm up, and the others are measured.
_WARM, _BATCHES = 5, 15
_A_BATCH = 30


@pytest.fixture(scope="module")
def session(object_store: ObjectStore) -> Iterator[SparkSession]:
    """A session with S3A: the only session in its process."""
    found = spark_session(config=object_store.settings, quick_start=True)
    yield found
    found.stop()


class _Moment(NamedTuple):
    time: float  # in seconds, as the store's
    store: float  # the time for which it has worked
    requests: Counter[str]


class _Batches:
    """Measures the time and requests between one batch's report and the next."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._seen: list[_Moment] = []

    def note(self, _report: BatchReport) -> None:
        moment = _Moment(time.monotonic(), self._store.seconds(), self._store.requests())
        self._seen.append(moment)

    def _pairs(self) -> Iterator[tuple[_Moment, _Moment]]:
        warm = self._seen[_WARM:]
        assert len(warm) == _BATCHES
        return itertools.pairwise(warm)

    def requests(self) -> dict[str, float]:
        """Requests of each kind in one batch."""
        found = [later.requests - earlier.requests for earlier, later in self._pairs()]
        kinds = sorted({kind for counts in found for kind in counts})
        return {kind: median(counts[kind] for counts in found) for kind in kinds}

    def seconds(self) -> float:
        return median(later.time - earlier.time for earlier, later in self._pairs())

    def store_seconds(self) -> float:
        """The store's time for a batch's requests."""
        return median(later.store - earlier.store for earlier, later in self._pairs())


def _run(spark: SparkSession, flow: Flow, store: ObjectStore, pipeline: Transform) -> _Batches:
    flow.produce(map(record, range(_A_BATCH * (_WARM + _BATCHES))))
    batches = _Batches(store)
    read = {"options": {"maxOffsetsPerTrigger": str(_A_BATCH)}}
    run_available(spark, flow, pipeline, read=read, on_batch=batches.note)
    return batches


@pytest.mark.parametrize(
    ("pipeline", "copies", "most"),
    # Spark renames its two logs' files; a staged copy's files are not renamed.
    [(relay, 2, 60), (staging.repartitioned, 2, 180)],
    ids=["direct", "staged"],
)
def test_what_a_batch_asks_for(
    session: SparkSession,
    flow: Flow,
    object_store: ObjectStore,
    pipeline: Transform,
    copies: int,
    most: int,
) -> None:
    requests = _run(session, flow, object_store, pipeline).requests()
    print(requests)
    assert requests["COPY"] == copies
    assert sum(requests.values()) <= most


@pytest.mark.parametrize("pipeline", [relay, staging.repartitioned], ids=["direct", "staged"])
def test_how_long_a_small_batch_takes(
    session: SparkSession, flow: Flow, new_flow: Any, object_store: ObjectStore, pipeline: Transform
) -> None:
    """At most twice as long as on a local disk, plus the store's own time."""
    local = new_flow()
    local.checkpoint = f"{local.worker_directory}-checkpoint"
    on_disk = _run(session, local, object_store, pipeline)
    in_store = _run(session, flow, object_store, pipeline)
    own, whole, disk = in_store.store_seconds(), in_store.seconds(), on_disk.seconds()
    print(f"local {disk:.3f} s, S3A {whole:.3f} s, of which the store {own:.3f} s")
    assert whole <= 2 * disk + own


@pytest.mark.parametrize("pipeline", ["relay", "repartitioned"])
def test_a_killed_query_continues(flow: Flow, tmp_path: Path, pipeline: str) -> None:
    flow.produce(map(record, range(600)))
    main = {"main": "support.staged_main", "pipeline": pipeline}
    chosen: dict[str, Any] = main if pipeline != "relay" else {}
    with QueryProcess(flow, tmp_path / "killed.log", max_offsets=_A_BATCH, **chosen) as query:
        query.until(lambda: len(query.reports()) > 3, "some batches")
    with QueryProcess(flow, tmp_path / "last.log", max_offsets=200, **chosen) as query:
        assert query.wait(120) == 0, query.output()
    assert sorted(json.loads(value)["n"] for value in flow.values()) == list(range(600))
    # As `spark-eos adopt` reads it, without a JVM.
    finished = OffsetLog(ArrowFiles(flow.checkpoint)).finished()
    assert finished.unfinished is None
    assert sum(finished.ends.values()) == 600


def test_own_files_are_created_once_and_not_renamed(
    session: SparkSession, flow: Flow, object_store: ObjectStore
) -> None:
    marker = "spark-eos/marker/1-aaaaaaaa"
    files = [HadoopFiles(session, flow.checkpoint) for _ in range(2)]
    before = object_store.requests()
    files[0].write(marker, "first")
    assert object_store.requests() - before == {"PUT": 1}
    with pytest.raises(Py4JJavaError, match="PreconditionFailed"):
        files[1].write(marker, "second")
    assert files[1].read(f"{marker}/part-0.txt") == "first\n"
    assert list(flow.stored.sizes("spark-eos")) == [f"{marker}/part-0.txt"]
