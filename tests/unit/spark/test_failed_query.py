"""The cause extracted from Spark's error text of a failed query."""

import pytest

from spark_eos._spark.failed_query import cause_of, file_fault
from spark_eos.errors import WriteError

_CLASSIC = """[STREAM_FAILED] Query [id = 72f6, runId = ca9d] terminated with exception: \
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach \
batch sink. Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most \
recent call last):
  File "/venv/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/venv/spark_eos/_run/attempts.py", line 100, in _check
    raise WriteError(f"{self._what}")
{error}
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 72f6, runId = ca9d]

Logical Plan:
~WriteToMicroBatchDataSourceV1 ForeachBatchSink
"""
_CHAINED = """  File "/query.py", line 7, in <lambda>
    bad = F.udf(lambda v: 1 // 0, "string")
                          ~~^^~~
ZeroDivisionError: integer division or modulo by zero

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/venv/spark_eos/_spark/batch_job.py", line 88, in run
    raise as_write_error(error)
"""


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("spark_eos.errors.WriteError: no such partition", "WriteError: no such partition"),
        ("ValueError: mine\n    and indented\n", "ValueError: mine\n    and indented"),
        ("spark_eos.errors.AuthorizationError: run:\n\tkafka-acls.sh --add", None),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        (f"{_CHAINED}spark_eos.errors.WriteError: it failed", "WriteError: it failed"),
    ],
)
def test_the_cause_is_the_last_exception(error: str, cause: str | None) -> None:
    expected = error.removeprefix("spark_eos.errors.") if cause is None else cause
    assert cause_of(_CLASSIC.replace("{error}", error)) == expected


@pytest.mark.parametrize(
    "error",
    [
        "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs ...",
        "Multiple streaming queries are concurrently using file:/checkpoints/orders/offsets",
    ],
)
def test_two_queries_with_one_checkpoint(error: str) -> None:
    text = f"[STREAM_FAILED] Query [id = 7] terminated with exception: {error} SQLSTATE: 40000"
    message = cause_of(text)
    assert message.startswith(error)
    assert "no row is lost or written twice. If the same program was started twice, stop" in message


@pytest.mark.parametrize("cause", ["null", "", "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] It failed"])
def test_state_that_can_not_be_read(cause: str) -> None:
    text = f"[STREAM_FAILED] Query [id = 7] terminated with exception: {cause} SQLSTATE: XXKST"
    message = cause_of(text)
    assert "files of the query's state, below the checkpoint, may be missing or damaged" in message
    assert message.startswith(cause if cause.startswith("[") else "Spark names no cause")


def test_an_error_of_sparks_own() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 7, runId = 8] terminated with exception: Job aborted due to "
        "stage failure: no disk SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = 7]"
    )
    assert cause_of(text) == "Job aborted due to stage failure: no disk"


def test_a_row_of_blanks_takes_no_time() -> None:
    blanks = f"bad{' ' * 100_000}row{chr(10) * 10_000}end"
    text = _CLASSIC.replace("{error}", f"spark_eos.errors.WriteError: {blanks}")
    assert cause_of(text) == f"WriteError: {blanks}"
    assert str(WriteError(blanks)).startswith(f"{blanks} [more: ")


def test_another_text_stays() -> None:
    assert cause_of("something else") == "something else"


def test_what_a_file_system_has_refused() -> None:
    text = "o1.start.\n: java.io.IOException: mkdir of file:/orders failed\n\tat ..."
    assert file_fault(text) == "mkdir of file:/orders failed"
