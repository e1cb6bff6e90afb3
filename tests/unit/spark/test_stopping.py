"""Errors of a stopped query; `test_batches.py` tests them on a real query."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from spark_eos._spark.classic import ClassicRuntime, as_query_stopped_error
from spark_eos.errors import CheckpointError

# As Spark 4.2 looks for it in the error's text, with a simpler loop.
_SPARK_LOOKS_FOR = re.compile(
    r"py4j\.protocol\.Py4JJavaError: An error occurred while calling(?s:.*)"
    r"(java\.lang\.InterruptedException|java\.io\.InterruptedIOException"
    r"|java\.nio\.channels\.ClosedByInterruptException)"
)
_FRAMES = "\n\tat java.base/java.lang.Thread.run(Thread.java:840)" * 200
_CALLING = "An error occurred while calling o70.collectToPython.\n: "


class Py4JJavaError(Exception):
    """By name, it is py4j's; a real one needs a JVM."""

    __module__ = "py4j.protocol"


@pytest.mark.parametrize(
    "text",
    [
        f"java.lang.InterruptedException{_FRAMES}",
        (
            f"java.lang.RuntimeException: of a job{_FRAMES}\nCaused by: "
            f"java.nio.channels.ClosedByInterruptException{_FRAMES}"
        ),
    ],
)
def test_an_interruption_is_found_in_what_is_left(text: str) -> None:
    found = as_query_stopped_error(Py4JJavaError(_CALLING + text))
    assert found is not None
    assert _SPARK_LOOKS_FOR.search(str(found))
    assert len(str(found)) < 500


def test_a_cancelled_job_group_is_found_in_what_is_left() -> None:
    why = "org.apache.spark.SparkException: Job 3 cancelled part of cancelled job group 6b2a"
    found = as_query_stopped_error(Py4JJavaError(f"{_CALLING}{why}{_FRAMES}"))
    assert found is not None
    assert why in str(found)
    assert len(str(found)) < 500


@pytest.mark.parametrize(
    "error",
    [
        ValueError("java.lang.InterruptedException"),
        Py4JJavaError(f"{_CALLING}org.apache.spark.SparkException: Job aborted{_FRAMES}"),
    ],
)
def test_other_errors_are_left_alone(error: Exception) -> None:
    assert as_query_stopped_error(error) is None


@pytest.mark.parametrize("active", [False, True])
def test_an_interrupted_read_of_the_checkpoint_is_no_failure(*, active: bool) -> None:
    query = SimpleNamespace(isActive=active)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=bool)))
    runtime: Any = ClassicRuntime.__new__(ClassicRuntime)
    runtime._query_id = "q"
    runtime.session = SimpleNamespace(streams=SimpleNamespace(get=lambda _id: query))
    runtime._session = SimpleNamespace(sparkContext=context)
    failed = CheckpointError("offsets/7 can't be read")
    # `HadoopFiles` replaces it.
    why = f"java.io.InterruptedIOException: Call interrupted{_FRAMES}"
    failed.__context__ = Py4JJavaError(_CALLING + why)
    found = runtime.stopped(failed)
    assert (found is None) == active
    assert found is None or _SPARK_LOOKS_FOR.search(str(found))
