"""Sink options that are refused with helpful errors."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkPicklingError

from spark_eos import DeadLetters, ExactlyOnceSink, Transactions, errors
from spark_eos._client.settings import ClientSettings
from spark_eos._sink.writer import (
    ExactlyOnceWriter,
    _checkpoint_at,
    _naming_what_cannot_be_copied,
)
from spark_eos._spark.source_options import selection_of
from spark_eos.observability.listener import BatchListener
from spark_eos.options import FLAT, GROUPS, flat_options, grouped
from support.messages import says
from support.sinks import arguments

_OTHER = {"bootstrap.servers": "b:1"}


_SERVERS = {"bootstrap.servers": "a:1"}


@pytest.mark.parametrize(
    "options",
    [
        {"group_id": " "},
        {"checkpoint_location": ""},
        {"max_transaction_records": "many"},
        {"max_block_ms": 0},
        {"metadata_max_idle_ms": -1},
        {"max_transaction_ms": 60_000},
        {"kafka": {}},
        {"kafka": {**_SERVERS, "transactional.id": "x"}},
        {"kafka": {**_SERVERS, "no.such.setting": "1"}},
        {"kafka": {**_SERVERS, "linger.ms": "soon"}},
        {"kafka": {**_SERVERS, "sasl.password": "s"}},
        {"asynchronous_progress": "false"},
        {"delivery": "exactly"},
        {"delivery": "mirrored"},
        {"delivery": "direct", "source_kafka": _OTHER},
        {"source_kafka": {}},
        {"source_kafka": {**_OTHER, "group.id": "g"}},
        {"source_kafka": {**_OTHER, "socket.timeout.ms": "soon"}},
        {"transaction_timeout_ms": 999, "max_transaction_ms": 100},
        {"kafka": {**_SERVERS, "socket.timeout.ms": 60_000}, "transaction_timeout_ms": 30_000},
    ],
    ids=str,
)
def test_options(options: dict[str, Any]) -> None:
    given = {"kafka": _SERVERS, "group_id": "g", "checkpoint_location": "c", **options}
    with says(errors.ConfigurationError):
        ExactlyOnceSink(**arguments(**given))


def test_spark_reads_the_names_that_are_checked() -> None:
    """Spark itself would leave the no-break space, which Python's `strip` removes."""
    read = selection_of("orders,\u00a0payments ", None, None)
    assert read == {"subscribe": "orders,payments"}


@pytest.mark.parametrize("trigger", ["continuous", "realTime"])
def test_a_trigger_without_batches(trigger: str) -> None:
    writer: Any = ExactlyOnceWriter.__new__(ExactlyOnceWriter)
    with says(errors.ConfigurationError):
        writer.trigger(**{trigger: "1 second"})


def test_no_refusal_of_a_checkpoint_shows_its_password() -> None:
    location = "sftp://orders:s3cret@host/cp"
    writer: Any = ExactlyOnceWriter.__new__(ExactlyOnceWriter)
    writer._query = SimpleNamespace(location=location)
    with pytest.raises(errors.ConfigurationError) as other:
        writer.option("checkpointLocation", f"{location}/other")
    with pytest.raises(errors.CheckpointError) as failed, _checkpoint_at(location):
        raise RuntimeError(f"java.io.IOException: mkdir of {location} failed")
    for caught in (other, failed):
        assert "'sftp://***@host/cp'" in str(caught.value)
        assert "s3cret" not in str(caught.value)


def test_what_can_not_be_copied_to_connect_is_named() -> None:
    """Connect's own code copies the function here, without a server."""
    from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

    writer: Any = DataStreamWriter.__new__(DataStreamWriter)
    with pytest.raises(errors.ConfigurationError), _naming_what_cannot_be_copied():
        writer.foreachBatch(BatchListener(print))
    with pytest.raises(PySparkPicklingError), _naming_what_cannot_be_copied():
        writer.foreachBatch(threading.Lock())


@pytest.mark.parametrize(
    "name", ["format", "toTable", "foreach", "partitionBy", "clusterBy", "nothing"]
)
def test_what_the_writer_does_not_have(name: str) -> None:
    writer: Any = ExactlyOnceWriter.__new__(ExactlyOnceWriter)
    with says(AttributeError):
        getattr(writer, name)


def test_each_value_object_option_has_its_own_help_and_flat_name() -> None:
    options = list(flat_options())
    assert len(options) == len(FLAT) == 18
    assert all(option.help.endswith(".") for option in options)
    for argument, kind in GROUPS.items():
        names = [option.field for option in options if option.argument == argument]
        assert all(f"\n        {name}: " in kind.__doc__ for name in names)


def test_flat_options_become_value_objects() -> None:
    found = grouped({"topic": "t", "max_transaction_records": 5, "dead_letter_topic": "dlq"})
    assert found == {
        "topic": "t",
        "transactions": Transactions(max_records=5),
        "dead_letters": DeadLetters("dlq"),
    }


@pytest.mark.parametrize(("partitions", "records"), [(50, "5000"), (300, "833")])
def test_of_many_partitions_fewer_records_are_polled_at_once(partitions: int, records: str) -> None:
    """Spark keeps the result of each consumer's last poll."""
    options = ClientSettings(_OTHER).for_spark_source(partitions)
    assert options["kafka.max.poll.records"] == records


def test_requests_of_the_source_wait_as_long_as_others() -> None:
    options = ClientSettings({**_OTHER, "socket.timeout.ms": "90000"}).for_spark_source()
    # Java's clients refuse a call that may take less than a request.
    waits = [options[f"kafka.{name}.timeout.ms"] for name in ("request", "default.api")]
    assert waits == ["90000", "180000"]
    assert "kafka.request.timeout.ms" not in ClientSettings(_OTHER).for_spark_source()
