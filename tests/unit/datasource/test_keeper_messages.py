"""What crosses a keeper's socket: plain values, of a fixed list of classes."""

import json
import uuid
from typing import Any, cast

import pytest

from spark_eos import errors
from spark_eos.acls import Operation, read_topic, transactional_ids
from spark_eos.batch.batch_report import BatchReport, PartitionReport
from spark_eos.batch.data_loss import LostRecords
from spark_eos.batch.dead_letters import DeadLetterSettings, DeadLetterTally
from spark_eos.batch.plan import PartitionPlan
from spark_eos.batch.task_report import DEFERRED, Counters, JobOutcome, PartitionOutcome
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.client.settings import ClientSettings
from spark_eos.datasource import keeper_messages
from spark_eos.datasource.json_values import PlainError
from spark_eos.datasource.keeper_messages import (
    Abort,
    Commit,
    Ended,
    Plan,
    Planned,
    from_plain,
    to_plain,
)
from spark_eos.kafka.transactions import MemberIdentity

KAFKA: dict[str, Any] = {
    "bootstrap.servers": "localhost:9092",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "bob",
    "sasl.password": 'pass="wörd\n',
    "linger.ms": 5,
    "enable.gapless.guarantee": False,
}


def _settings(**kafka: Any) -> Any:
    return WriterSettings(
        client=ClientSettings({**KAFKA, **kafka}).checked_by_librdkafka(),
        group_id="group",
        topic=None,
        transactional_id_prefix="spark-eos",
        max_transaction_records=1,
        max_transaction_bytes=1,
        max_transaction_ms=1,
        transaction_timeout_ms=60_000,
        connect_timeout_ms=1_500,
        max_block_ms=1,
        metadata_max_idle_ms=1,
        worker_directory=None,
        fail_on_data_loss=False,
        dead_letters=DeadLetterSettings(topic="dlq", max_dead_letters=5),
    )


MESSAGES = [
    Plan(_settings(), "s3://bucket/é", 64, 20_000),
    Planned(
        7,
        "query",
        {("in", 0): PartitionPlan(
                uuid.uuid4(), 1, 7, 1 << 40, MemberIdentity("m", 3, "spark-eos-0"), "known: 2"
            )},
    ),
    Commit(
        7,
        "",
        JobOutcome(
            {("in", 1): PartitionOutcome(DEFERRED, None, 1, 2, "why")},
            Counters(transactions=2, produce_ms=0.5),
            None,
            failed=False,
            deferred=True,
            dead=DeadLetterTally({"error": 1}, {"error": "source in-1 offset 3"}, {"why": 1}),
        ),
    ),
    Abort(),
    Ended(),
    BatchReport(
        "group", "query", "run", 7, 1, 2, 3, 4, 1, 6,
        (PartitionReport("in", 0, None, 5, 1, 2, None),),
        {"total": 1.25},
        (LostRecords("in", 0, 3, 5),),
        dead_letters={"error": 2},
    ),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_arrive_as_they_were_sent(message: Any) -> None:
    received = from_plain(json.loads(json.dumps(to_plain(message))))
    assert received == message
    assert type(received) is type(message)


def test_every_message_is_tried() -> None:
    assert {type(message).__name__ for message in MESSAGES} == keeper_messages._MESSAGES.keys()


@pytest.mark.parametrize("name", keeper_messages._ERRORS)
def test_errors_arrive_as_what_they_are(name: str) -> None:
    acls = (read_topic("in"), transactional_ids("spark-eos/g/", Operation.WRITE))
    more = {"KafkaResponseError": (30,), "AuthorizationError": (30, acls)}.get(name, ())
    error = keeper_messages._ERRORS[name]("a\ntext", *more)
    received = from_plain(json.loads(json.dumps(to_plain(error))))
    assert type(received) is type(error)
    assert vars(received) == vars(error)
    assert str(received) == "a\ntext"


def test_an_error_that_is_not_known_arrives_as_one_of_ours() -> None:
    class OwnError(errors.SparkEosError):
        pass

    received = from_plain(to_plain(OwnError("text")))
    assert (type(received), str(received)) == (errors.SparkEosError, "text")


def test_a_function_does_not_travel() -> None:
    settings = ClientSettings(
        {
            "bootstrap.servers": "localhost:9092",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": print,
        }
    )
    with pytest.raises(errors.ConfigurationError, match="oauth_cb"):
        settings.plain()


PLANNED: Any = to_plain(cast("Planned", MESSAGES[1]))


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"message": "Popen", "fields": {}},
        {"message": "Planned", "fields": []},
        {"message": "Planned", "fields": {**PLANNED["fields"], "more": 1}},
        {"message": "Planned", "fields": {**PLANNED["fields"], "batch_id": "7"}},
        {"message": "Planned", "fields": {**PLANNED["fields"], "batch_id": True}},
        {"message": "Planned", "fields": {**PLANNED["fields"], "plan": 7}},
        {"message": "Planned", "fields": {**PLANNED["fields"], "plan": [[["in"], {}]]}},
        {"error": "SystemExit", "arguments": ["text"]},
        {"error": "KafkaResponseError", "arguments": ["text"]},
        {"error": "WriteError", "arguments": [{}]},
    ],
)
def test_what_is_none_of_them_is_refused(document: object) -> None:
    with pytest.raises(PlainError):
        from_plain(document)
