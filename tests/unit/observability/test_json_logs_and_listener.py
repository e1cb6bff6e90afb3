"""What operators see of a query: log lines and joined progress."""

import json
import logging
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_eos import ConfigurationError, ExactlyOnceSink
from spark_eos.observability.json_logs import JsonFormatter
from spark_eos.observability.listener import BatchListener, source_lag
from spark_eos.observability.speaking import batch_line
from support.reports import REPORT, progress


def test_values_that_would_break_a_line_are_quoted() -> None:
    assert 'group_id="orders and more" batch_id=7 ' in str(REPORT)


def test_the_text_names_moved_timestamps_where_there_are_any() -> None:
    assert " timestamps_adjusted=4 " in str(REPORT)
    assert "timestamps_adjusted" not in str(replace(REPORT, timestamps_adjusted=0))


def test_a_batch_in_a_few_words_names_what_there_is() -> None:
    assert batch_line(replace(REPORT, rows_written=10_000)) == (
        "group orders and more, batch 7: 10,000 rows in 0.08 s, 1 row skipped, 3 dead letters, "
        "2 source records lost, 2 attempts"
    )
    plain = replace(REPORT, rows_skipped=0, dead_letters={}, lost=(), attempts=1)
    assert batch_line(plain) == "group orders and more, batch 7: 5 rows in 0.08 s"


def test_a_log_shipper_gets_one_document_per_record() -> None:
    record = logging.makeLogRecord(
        {"name": "spark_eos", "levelname": "INFO", "created": 1.5, "msg": "%s", "args": (REPORT,)}
        | REPORT.fields()
    )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "timestamp": "1970-01-01T00:00:01.500+00:00",
        "level": "INFO",
        "logger": "spark_eos",
        "message": str(REPORT),
        **REPORT.fields(),
    }


def test_a_document_holds_the_traceback() -> None:
    with pytest.raises(ValueError, match="abc") as caught:
        int("abc")
    failure = (caught.type, caught.value, caught.tb)
    record = logging.LogRecord("n", logging.ERROR, "", 1, "m", (), failure)
    document = json.loads(JsonFormatter().format(record))
    assert document["exception"].startswith("Traceback")
    assert document["exception"].endswith(
        "ValueError: invalid literal for int() with base 10: 'abc'"
    )


def test_what_can_not_be_called_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"on_batch must be a function, .* not a list that holds .* and str",
    ):
        ExactlyOnceSink(
            kafka={"bootstrap.servers": "h:1"},
            group_id="g",
            checkpoint_location=str(tmp_path),
            on_batch=[print, "print"],  # type: ignore[list-item]
        )


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_lag_is_logged_where_it_is_known(kind: str) -> None:
    def as_json(offsets: object) -> object:
        # As Spark's progress has them.
        return offsets if kind == "classic" else json.dumps(offsets)

    end, latest = {"a": {"0": 5, "1": 5}}, {"a": {"0": 9, "1": 4, "2": 3}}
    # Partition 2 appeared after the batch was planned: where it starts is not known.
    assert source_lag(progress(as_json(end), as_json(latest))) == {("a", 0): 4, ("a", 1): 0}
    assert source_lag(progress(as_json(end), as_json(None))) == {}


def test_the_lag_of_a_staged_query_is_that_of_its_topics() -> None:
    """It may also read files, or a topic twice."""

    def lag(*sources: tuple[object, object]) -> dict[tuple[str, int], int]:
        found = [{"endOffset": end, "latestOffset": latest} for end, latest in sources]
        spark: Any = SimpleNamespace(json=json.dumps({"sources": found}))
        return source_lag(spark)

    files = ({"logOffset": 3}, None)
    behind, ahead = (({"a": {"0": end}}, {"a": {"0": 9}}) for end in (5, 7))
    assert lag(files) == {}
    assert lag(files, behind, ahead) == lag(ahead, behind) == {("a", 0): 4}


def test_a_listener_can_not_travel() -> None:
    with pytest.raises(ConfigurationError, match="join reports and progress by query_id"):
        pickle.dumps(BatchListener(print))


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("lag", {("orders", 0): 3}, {"('orders', 0)": 3}),
        ("share", float("nan"), "nan"),
        ("shares", [float("inf"), 0.5], ["inf", 0.5]),
        ("file", "caf\udce9", "caf\udce9"),
        ("path", Path("a"), "a"),
    ],
)
def test_no_record_is_lost_because_of_an_extra(name: str, value: object, found: object) -> None:
    line = JsonFormatter().format(logging.makeLogRecord({name: value}))
    assert json.loads(line, parse_constant=pytest.fail)[name] == found
    assert line.isascii()


def test_extras_replace_no_member_and_may_contain_themselves() -> None:
    endless: list[object] = []
    endless.append(endless)
    given = {"level": "theirs", "levelname": "INFO", "endless": endless, "stack_info": "Stack:"}
    document = json.loads(JsonFormatter().format(logging.makeLogRecord(given)))
    assert (document["level"], document["level_"]) == ("INFO", "theirs")
    assert (document["endless"], document["stack"]) == ("<list>", "Stack:")
