"""Options of the sink that are refused, with words that help."""

from typing import Any

import pytest

from spark_eos import DeadLetters, ExactlyOnceSink, Transactions, errors
from spark_eos._client.settings import ClientSettings
from spark_eos._sink.writer import ExactlyOnceWriter
from spark_eos.options import FLAT, GROUPS, flat_options, grouped
from support.sinks import arguments

_OTHER = {"bootstrap.servers": "b:1"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"group_id": " "}, "group_id"),
        ({"checkpoint_location": ""}, "checkpoint_location"),
        ({"max_members": 0}, r"limits\.max_members"),
        ({"max_transaction_records": "many"}, r"transactions\.max_records"),
        ({"max_block_ms": 0}, r"limits\.max_block_ms"),
        ({"metadata_max_idle_ms": -1}, r"limits\.metadata_max_idle_ms"),
        (
            {"max_transaction_ms": 60_000},
            r"transactions\.max_ms=60000 must be below transactions\.timeout_ms",
        ),
        ({"kafka": {}}, "bootstrap.servers"),
        ({"kafka": {"bootstrap.servers": "a:1", "transactional.id": "x"}}, r"transactions\.id_pre"),
        ({"kafka": {"bootstrap.servers": "a:1", "no.such.setting": "1"}}, "no.such.setting"),
        ({"kafka": {"bootstrap.servers": "a:1", "linger.ms": "soon"}}, "linger.ms"),
        ({"kafka": {"bootstrap.servers": "a:1", "sasl.password": "s"}}, "PLAINTEXT"),
        ({"asynchronous_progress": "false"}, "asynchronous_progress"),
        ({"delivery": "exactly"}, "'direct', 'mirrored' or 'staged'"),
        ({"delivery": "mirrored"}, "give its client settings as source_kafka"),
        ({"delivery": "direct", "source_kafka": _OTHER}, "use delivery='mirrored'"),
        ({"source_kafka": {}}, "source_kafka: kafka needs 'bootstrap.servers'"),
        ({"source_kafka": {**_OTHER, "group.id": "g"}}, "source_kafka: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options(options: dict[str, Any], words: str) -> None:
    given = {
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "group_id": "g",
        "checkpoint_location": "c",
        **options,
    }
    with pytest.raises(errors.ConfigurationError, match=words):
        ExactlyOnceSink(**arguments(**given))


@pytest.mark.parametrize("trigger", ["continuous", "realTime"])
def test_a_trigger_without_batches(trigger: str) -> None:
    writer: Any = ExactlyOnceWriter.__new__(ExactlyOnceWriter)
    with pytest.raises(
        errors.ConfigurationError, match=rf"trigger\({trigger}='1 second'\) can't be used"
    ):
        writer.trigger(**{trigger: "1 second"})


@pytest.mark.parametrize(
    "name", ["format", "toTable", "foreach", "partitionBy", "clusterBy", "nothing"]
)
def test_what_the_writer_does_not_have(name: str) -> None:
    writer: Any = ExactlyOnceWriter.__new__(ExactlyOnceWriter)
    words = "no attribute 'nothing'" if name == "nothing" else f"has no {name}: "
    with pytest.raises(AttributeError, match=words):
        getattr(writer, name)


def test_every_option_of_a_value_object_has_a_help_and_a_flat_name_of_its_own() -> None:
    options = list(flat_options())
    assert len(options) == len(FLAT) == 19
    assert all(option.help.endswith(".") for option in options)
    for argument, kind in GROUPS.items():
        told = [option.field for option in options if option.argument == argument]
        assert all(f"\n        {name}: " in kind.__doc__ for name in told)


def test_flat_options_become_value_objects() -> None:
    found = grouped({"topic": "t", "max_transaction_records": 5, "dead_letter_topic": "dlq"})
    assert found == {
        "topic": "t",
        "transactions": Transactions(max_records=5),
        "dead_letters": DeadLetters("dlq"),
    }


@pytest.mark.parametrize(("partitions", "records"), [(50, "5000"), (300, "833")])
def test_of_many_partitions_fewer_records_are_polled_at_once(partitions: int, records: str) -> None:
    """Spark keeps what the last poll of each has brought."""
    options = ClientSettings(_OTHER).for_spark_source(partitions)
    assert options["kafka.max.poll.records"] == records


def test_requests_of_the_source_wait_as_long_as_others() -> None:
    options = ClientSettings({**_OTHER, "socket.timeout.ms": "90000"}).for_spark_source()
    # Java's clients refuse a call that may take less than a request.
    waits = [options[f"kafka.{name}.timeout.ms"] for name in ("request", "default.api")]
    assert waits == ["90000", "180000"]
    assert "kafka.request.timeout.ms" not in ClientSettings(_OTHER).for_spark_source()


def test_settings_of_a_source_are_checked_as_those_of_the_target_are() -> None:
    words = r"source_kafka: kafka\['socket.timeout.ms'\]"
    with pytest.raises(errors.ConfigurationError, match=words):
        ClientSettings.of_source({**_OTHER, "socket.timeout.ms": "soon"})
