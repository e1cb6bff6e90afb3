"""What becomes of the options of ``format("kafka-eos")``; no Spark and no broker."""

import re
import subprocess
import sys

import pytest

from spark_eos import ExactlyOnceSink, errors
from spark_eos.datasource.options import (
    _REQUIRED,
    KNOWN,
    answer_within,
    in_option_names,
    read_options,
)
from support.jobs import ROOT
from support.versions import needs_data_sources

_NEEDED = {
    "kafka.bootstrap.servers": "localhost:1",
    "groupid": "group",
    "checkpointlocation": "/c",
}


def test_options_are_the_sinks_with_its_defaults() -> None:
    found = read_options({**_NEEDED, "queryname": "q"})
    sink = ExactlyOnceSink(
        kafka={"bootstrap.servers": "localhost:1"}, group_id="group", checkpoint_location="/c"
    )
    assert found.settings == sink._settings
    assert (found.max_members, found.group_timeout_ms) == (
        sink._limits.max_members,
        sink._limits.group_timeout_ms,
    )
    assert (found.checkpoint_location, found.idle_timeout_ms) == ("/c", 600_000)


def test_the_docs_table_has_them_all() -> None:
    page = (ROOT / "docs" / "data-source.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", page, re.MULTILINE)
    told = {name: default.strip("` ") for name, default in rows}
    assert told.pop("workerDirectory") == "below the temporary directory"
    assert told == {
        option.shown: "" if option.default in (_REQUIRED, None) else str(option.default)
        for option in KNOWN.values()
        if option.shown != "workerDirectory"
    }


def test_options_of_each_kind() -> None:
    more = {
        "topic": "t",
        "deadlettertopic": "letters",
        "deadletterstacktrace": "true",
        "maxtransactionrecords": "5",
        "grouptimeoutms": "1500",
        "idletimeoutms": "7000",
        "kafka.compression.type": "zstd",
    }
    found = read_options({**_NEEDED, **more})
    assert (found.settings.topic, found.settings.max_transaction_records) == ("t", 5)
    assert (found.group_timeout_ms, found.idle_timeout_ms) == (1_500, 7_000)
    letters = found.settings.dead_letters
    assert letters is not None
    assert (letters.topic, letters.stacktrace) == ("letters", True)
    assert found.settings.client.for_producer("t", 1)["compression.type"] == "zstd"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"maxtransactionrecord": "1"},
            "no option 'maxtransactionrecord': did you mean maxTransactionRecords?",
        ),
        ({"bootstrap.servers": "x"}, "did you mean kafka.bootstrap.servers?"),
        ({"maxrounds": "1"}, "no option 'maxrounds'"),
        (
            {"zzzzzzz": "1"},
            "the options are checkpointLocation, connectTimeoutMs, .*, and Kafka's client",
        ),
        ({"maxmembers": "many"}, "option maxMembers must be a number, not 'many'"),
        ({"maxmembers": "0"}, "maxMembers must be a number above 0"),
        ({"idletimeoutms": "-1"}, "idleTimeoutMs must be a number above 0"),
        ({"maxblockms": "0"}, "maxBlockMs must be a number above 0"),
        (
            {"maxtransactionms": "60000"},
            "maxTransactionMs=60000 must be below",
        ),
        ({"kafka.acks": "1"}, "kafka.acks can't be set"),
        ({"kafka.no.such": "1"}, "kafka.no.such"),
        ({"groupid": "", "grupid": "g"}, "did you mean groupId?"),
        ({"groupid": ""}, "groupId must be a non-empty string"),
        ({"checkpointlocation": ""}, "checkpointLocation is missing"),
    ],
    ids=str,
)
def test_refusals_name_the_option(options: dict[str, str], words: str) -> None:
    with pytest.raises(errors.ConfigurationError) as refusal:
        read_options({**_NEEDED, **options})
    assert re.search(words, str(in_option_names(refusal.value)))


@pytest.mark.parametrize(
    "shown", ["delivery", "progressTopic", "progressPartitions", "progressReplicas"]
)
def test_options_of_staged_queries_name_the_sink(shown: str) -> None:
    for written in (shown.lower(), re.sub(r"([A-Z])", r"_\1", shown).lower()):
        with pytest.raises(errors.ConfigurationError) as refusal:
            read_options({**_NEEDED, written: "staged"})
        told = str(in_option_names(refusal.value))
        assert told.startswith(f"option {shown} can't be used: format('kafka-eos') writes directly")
        assert "Use ExactlyOnceSink" in told


def test_other_errors_name_options_too() -> None:
    error = errors.KafkaResponseError("no success within 5 s (group_timeout_ms)", 15)
    told = in_option_names(error)
    assert isinstance(told, errors.KafkaResponseError)
    assert (str(told), told.code) == ("no success within 5 s (groupTimeoutMs)", 15)


@needs_data_sources
def test_an_older_spark_is_named() -> None:
    script = """
import pyspark.sql.datasource as found, spark_eos
del found.DataSourceStreamArrowWriter
spark_eos.ExactlyOnceSink
try:
    spark_eos.KafkaEosDataSource
except ImportError as error:
    assert "needs Spark 4.1 or newer" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_key_that_spark_would_show_is_refused() -> None:
    """Spark knows secrets by the names of options; this one's has no such word."""
    key = "-----BEGIN PRIVATE KEY-----\nmarker\n-----END PRIVATE KEY-----"
    with pytest.raises(errors.ConfigurationError, match=r"kafka\.ssl\.key\.location") as told:
        read_options({**_NEEDED, "kafka.security.protocol": "SSL", "kafka.ssl.key.pem": key})
    assert "marker" not in str(told.value)


def test_how_long_a_keeper_may_take() -> None:
    assert answer_within(_NEEDED) == 30 + 8 * 60 + 2 * 60 + 2 * 60
    options = {"connecttimeoutms": "1000", "grouptimeoutms": "2500", "transactiontimeoutms": "1000"}
    assert answer_within({**_NEEDED, **options}) == 1 + 20 + 2 + 120
