"""Settings with other clients' names are refused; errors give librdkafka's names."""

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from spark_eos._client import settings
from spark_eos._client.settings import ClientSettings
from spark_eos._spark.source_options import check_source_options
from spark_eos.errors import ConfigurationError, SparkEosError
from support.client_settings import SERVERS
from support.messages import says

_VALUES = {
    "compression.level": "1",
    "partitioner": "murmur2",
    "check.crcs": "true",
    "client.dns.lookup": "use_all_dns_ips",
    "client.rack": "rack-1",
    "metadata.recovery.strategy": "none",
}


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
        with says(ConfigurationError):
            ClientSettings({**SERVERS, written: "100000"})


@pytest.mark.parametrize("settings", [ClientSettings, ClientSettings.of_source])
def test_settings_that_are_no_dict_are_refused(settings: Any) -> None:
    with says(ConfigurationError):
        settings("broker-1:9092")


@pytest.mark.parametrize(
    ("starting_offsets", "option", "value"),
    [
        ("earliest", "maxOffsetPerTrigger", "1"),
        ("earliest", "max_offsets_per_trigger", "1"),
        ("earliest", "groupId", "1"),
        ("earliest", "checkpoint", "1"),
        ("earliest", "startingOffsetsByTimestamp", '{"in": {"0": 1}}'),
        ("earliest", "startingtimestamp", "1"),
        ("earliest", "startingOffsets", "latest"),
        ('{"in": {"0": 7}}', "minOffsetsPerTrigger", "1"),
    ],
)
def test_an_option_of_the_source_is_refused_with_what_to_use(
    starting_offsets: str, option: str, value: str
) -> None:
    with says(SparkEosError):
        check_source_options(starting_offsets, {option: value}, ClientSettings(SERVERS))


def test_options_of_the_source_are_taken_in_any_case() -> None:
    options = ("MAXOFFSETSPERTRIGGER", "kafka.max.poll.records", "fetchOffset.numRetries")
    check_source_options("earliest", dict.fromkeys(options, "1"), ClientSettings(SERVERS))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("auto.offset.reset", "latest", "set starting_offsets of sink.read"),
        ("enable.auto.commit", True, "offsets are committed in the transactions"),
        ("session.timeout.ms", 6_000, "spark-eos itself is the group's member"),
        ("group.protocol", "classic", "spark-eos itself is the group's member"),
        ("acks", "1", "acks=all"),
        ("enable.idempotence", False, "always idempotent"),
        # To librdkafka, the same as the name without its prefix.
        ("topic.message.timeout.ms", 1_000, "records expire with their transaction"),
    ],
)
def test_a_setting_without_effect_is_refused(name: str, value: object, words: str) -> None:
    for given in (name, f"kafka.{name}"):
        with pytest.raises(ConfigurationError, match=rf"kafka\['{name}'\] can't be set: .*{words}"):
            ClientSettings({**SERVERS, given: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("acks", "all"),
        ("acks", -1),
        ("request.required.acks", "-1"),
        ("enable.idempotence", True),
        ("enable.idempotence", "true"),
        ("enable.auto.commit", False),
        ("group.protocol", "consumer"),
    ],
)
def test_a_value_that_is_used_anyway_is_accepted(name: str, value: object) -> None:
    plain, given = ClientSettings(SERVERS), ClientSettings({**SERVERS, name: value})
    assert given.checked_by_librdkafka() == plain


def test_servers_may_be_a_list() -> None:
    listed = ClientSettings({"bootstrap.servers": ["a:1", "b:2"]})
    assert listed == ClientSettings({"bootstrap.servers": "a:1,b:2"})


@pytest.mark.parametrize(("ours", "javas"), settings._OF_CONSUMERS.items())
def test_settings_of_consumers_reach_sparks_source(ours: str, javas: str) -> None:
    assert _known(ours, _VALUES.get(ours, "100000"))
    value = _VALUES.get(ours, "70000")
    options = ClientSettings({**SERVERS, ours: value}).for_spark_source()
    assert options[f"kafka.{javas}"] == value
    # Under the name of Java's consumers the option of the source is refused with librdkafka's.
    if javas not in (ours, "fetch.max.wait.ms"):
        with pytest.raises(ConfigurationError, match=r"as '[a-z.]+' in kafka="):
            check_source_options("earliest", {f"kafka.{javas}": "1"}, ClientSettings(SERVERS))


@pytest.mark.parametrize("ours", settings._OFF_IS_0)
def test_librdkafkas_0_is_javas_minus_1(ours: str) -> None:
    client = ClientSettings({**SERVERS, ours: 0}).checked_by_librdkafka()
    assert client.for_spark_source()[f"kafka.{settings._OF_CONSUMERS[ours]}"] == "-1"


def test_a_small_fetch_of_sparks_source_is_not_librdkafkas() -> None:
    """A consumer of librdkafka refuses one that is below its `message.max.bytes`."""
    client = ClientSettings({**SERVERS, "fetch.max.bytes": 500_000}).checked_by_librdkafka()
    assert client.for_spark_source()["kafka.fetch.max.bytes"] == "500000"
    Consumer({**client.for_consumer(), "group.id": "a"}).close()


@pytest.mark.parametrize("value", [3_000_000_000, -5])
def test_the_range_of_a_setting_of_sparks_source_is_checked(value: int) -> None:
    settings = ClientSettings({**SERVERS, "fetch.max.bytes": value})
    with pytest.raises(ConfigurationError, match=r"'fetch\.max\.bytes'.*outside"):
        settings.checked_by_librdkafka()


def test_a_request_may_take_as_long_as_a_transaction() -> None:
    client = ClientSettings({**SERVERS, "socket.timeout.ms": 90_000})
    assert client.checked_by_librdkafka(120_000) is client
    assert ClientSettings.of_source({**SERVERS, "socket.timeout.ms": 90_000}) == client
    with pytest.raises(ConfigurationError, match=r"socket\.timeout\.ms.*transactions\.timeout_ms"):
        client.checked_by_librdkafka(60_000)


@pytest.mark.parametrize("value", ["30s", "0x200000", "65_536", "010000", 0.5, True, "", [7]])
@pytest.mark.parametrize("name", ["socket.timeout.ms", "message.max.bytes", "fetch.min.bytes"])
def test_numbers_that_clients_read_differently_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}.*must be a whole number"):
        ClientSettings({**SERVERS, name: value})


@pytest.mark.parametrize("value", [1e3, " 1000 "])
def test_a_number_that_is_written_in_another_way(value: object) -> None:
    client = ClientSettings({**SERVERS, "fetch.min.bytes": value}).checked_by_librdkafka()
    assert client.for_spark_source()["kafka.fetch.min.bytes"] == "1000"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "'maxOffsetsPerTrigger' must be .* from 1 to .*, not '0'"),
        ({"MAXOFFSETSPERTRIGGER": "-5"}, "'maxOffsetsPerTrigger' must be .*, not '-5'"),
        ({"maxOffsetsPerTrigger": "10k"}, "not '10k'"),
        ({"maxOffsetsPerTrigger": " 10 "}, "not ' 10 '"),
        ({"maxOffsetsPerTrigger": "1_000"}, "not '1_000'"),
        ({"maxOffsetsPerTrigger": 1e3}, "not '1000.0'"),
        ({"maxOffsetsPerTrigger": True}, "not 'True'"),
        ({"maxOffsetsPerTrigger": [5]}, "must be True or False, .* or a string, not a list"),
        ({"maxOffsetsPerTrigger": str(2**63)}, "from 1 to 9223372036854775807"),
        ({"minOffsetsPerTrigger": "-1"}, "'minOffsetsPerTrigger' must be"),
        ({"minOffsetsPerTrigger": 10, "maxOffsetsPerTrigger": 5}, "=10 is above .*=5"),
        ({"fetchOffset.numRetries": 0}, "'fetchOffset.numRetries' must be .* from 1"),
        ({"fetchOffset.retryIntervalMs": "soon"}, "'fetchOffset.retryIntervalMs' must be"),
        ({"kafkaConsumer.pollTimeoutMs": "0"}, "'kafkaConsumer.pollTimeoutMs' must be"),
        ({"kafka.max.poll.records": "0"}, "'kafka.max.poll.records' must be"),
        ({"kafka.fetch.max.wait.ms": "-1"}, "'kafka.fetch.max.wait.ms' must be"),
        ({"maxTriggerDelay": "soon"}, "'maxTriggerDelay' must be a time such as '15m'"),
    ],
    ids=str,
)
def test_numbers_of_the_source_that_spark_misreads(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check_source_options("earliest", options, ClientSettings(SERVERS))


def test_options_of_the_source_become_texts() -> None:
    given = {"maxOffsetsPerTrigger": 10, "maxTriggerDelay": "15m", "groupIdPrefix": "a"}
    texts = check_source_options("earliest", given, ClientSettings(SERVERS))
    assert texts == {**given, "maxOffsetsPerTrigger": "10"}


@pytest.mark.parametrize(
    "server",
    ["host", "host:", "host:None", "http://h:9092/", "[::1", "::1:9092", ":9092", "h:0", "h:65536"],
)
def test_an_address_that_not_all_clients_can_use_is_named(server: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"'bootstrap\.servers'\] contains.*HOST:PORT"
    ) as info:
        ClientSettings({"bootstrap.servers": f"localhost:9092,{server}"})
    assert repr(server) in str(info.value)


def test_addresses_without_empty_ones() -> None:
    given = " localhost:9092, ,[::1]:9092,PLAINTEXT://b:1,"
    servers = ClientSettings({"bootstrap.servers": given}).bootstrap_servers
    assert servers == "localhost:9092,[::1]:9092,PLAINTEXT://b:1"


def test_two_names_of_one_setting_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"set bootstrap.servers instead"):
        ClientSettings({**SERVERS, "metadata.broker.list": "elsewhere:9092"})
    login = {"security.protocol": "SASL_SSL", "sasl.username": "a", "sasl.password": "b"}
    both = {"sasl.mechanism": "PLAIN", "sasl.mechanisms": "SCRAM-SHA-256"}
    with pytest.raises(ConfigurationError, match="not both"):
        ClientSettings({**SERVERS, **login, **both})
