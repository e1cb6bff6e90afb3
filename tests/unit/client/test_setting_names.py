"""Client settings under other clients' names are refused with librdkafka's."""

import pytest
from confluent_kafka import KafkaException, Producer

from spark_eos._client import settings
from spark_eos._client.settings import ClientSettings
from spark_eos._sink.reader import check_source_options
from spark_eos.errors import ConfigurationError, SparkEosError
from support.client_settings import SERVERS

_VALUES = {"compression.level": "1", "partitioner": "murmur2"}


def _known(name: str, value: str) -> bool:
    try:
        Producer({name: value, "log_level": 0}).close()
    except KafkaException as error:
        return "No such configuration property" not in error.args[0].str()
    return True


@pytest.mark.parametrize(("javas", "ours"), settings._JAVAS.items())
def test_a_name_of_javas_clients_is_refused_with_librdkafkas(javas: str, ours: str) -> None:
    name = ours.split("'")[1]
    assert not _known(javas, "100000")
    assert _known(name, _VALUES.get(name, "100000"))
    for written in (javas, f"kafka.{javas}"):
        with pytest.raises(ConfigurationError) as refused:
            ClientSettings({**SERVERS, written: "100000"})
        assert f"kafka[{javas!r}] is a name of Java's clients; in librdkafka it is {ours}" in str(
            refused.value
        )


def test_settings_that_are_no_dict_are_refused_in_words() -> None:
    words = (
        r"kafka must be a dict of client settings, such as \{'bootstrap.servers': '.*of type str"
    )
    with pytest.raises(ConfigurationError, match=words):
        ClientSettings("broker-1:9092")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=f"source_kafka: {words}"):
        ClientSettings.of_source("broker-1:9092")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("maxOffsetPerTrigger", "do you mean maxOffsetsPerTrigger?"),
        ("max_offsets_per_trigger", "do you mean maxOffsetsPerTrigger?"),
        ("groupId", "do you mean groupIdPrefix?"),
        ("checkpoint", "do you mean maxOffsetsPerTrigger or minOffsetsPerTrigger or maxTrigger"),
    ],
)
def test_an_unknown_option_of_the_source_is_refused_with_the_nearest(
    option: str, advice: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_source_options("earliest", {option: "1"}, ClientSettings(SERVERS))
    assert f"Spark's Kafka source has no option {option!r}: {advice}" in str(refused.value)


@pytest.mark.parametrize(
    ("starting_offsets", "options"),
    [
        ("earliest", {"startingOffsetsByTimestamp": '{"in": {"0": 1}}'}),
        ("earliest", {"startingtimestamp": "1"}),
        ("earliest", {"startingOffsets": "latest"}),
        ('{"in": {"0": 7}}', {}),
    ],
)
def test_how_to_begin_elsewhere_is_told(starting_offsets: str, options: dict[str, str]) -> None:
    with pytest.raises(SparkEosError) as refused:
        check_source_options(starting_offsets, options, ClientSettings(SERVERS))
    for tool in ("kafka-consumer-groups.sh --reset-offsets --to-datetime", "progress --set"):
        assert tool in str(refused.value)


def test_options_of_the_source_are_taken_in_any_case() -> None:
    options = ("MAXOFFSETSPERTRIGGER", "kafka.max.poll.records", "fetchOffset.numRetries")
    check_source_options("earliest", dict.fromkeys(options, "1"), ClientSettings(SERVERS))
