"""The embedded broker's secured listeners, with librdkafka and with kafka-python."""

import contextlib
import time
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos.testing import BrokerSecurity, EmbeddedKafka, SecuredListener
from spark_eos.testing.broker_admin import admin_client
from support.secured import MECHANISMS, Secured

_BY_PASSWORD = [mechanism for mechanism in MECHANISMS if mechanism != "OAUTHBEARER"]


def topics(settings: dict[str, Any]) -> set[str]:
    """All topics that a client sees; fails with librdkafka's first error."""
    errors: list[str] = []
    with_errors = {**settings, "log_level": 0, "error_cb": lambda error: errors.append(str(error))}
    admin = AdminClient(with_errors)
    until = time.monotonic() + 60
    while time.monotonic() < until and not errors:
        with contextlib.suppress(KafkaException):
            return set(admin.list_topics(timeout=1).topics)
        admin.poll(0)
    raise PermissionError(f"no answer: {errors}")


@pytest.mark.slow
@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("mechanism", _BY_PASSWORD)
def test_only_the_users_own_password_is_accepted(
    secured: Secured, mechanism: str, *, tls: bool
) -> None:
    assert topics(secured.sasl(mechanism, tls=tls)) is not None
    with pytest.raises(PermissionError, match="Authentication failed"):
        topics(secured.sasl(mechanism, tls=tls, password="wrong"))


@pytest.mark.slow
def test_an_odd_name_gets_in_by_scram() -> None:
    """SCRAM itself uses commas and equals signs, and kafka-python does not escape names."""
    listener = SecuredListener("SASL_PLAINTEXT", ("SCRAM-SHA-256",))
    security = BrokerSecurity(listeners={"SCRAM": listener}, users={"o=dd,name": "o"})
    with EmbeddedKafka(security=security) as broker:
        settings = {
            "bootstrap.servers": broker.servers_of("SCRAM"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "o=dd,name",
            "sasl.password": "o",
        }
        assert topics(settings) is not None
        with closing(Connections(ClientSettings(settings))) as connections:
            assert connections.brokers(Deadline(60, "test")) == [1]


@pytest.mark.slow
def test_the_authorizer_allows_what_acls_say() -> None:
    security = BrokerSecurity(
        listeners={"SCRAM": SecuredListener("SASL_PLAINTEXT", ("SCRAM-SHA-256",))},
        users={"alice": "a", "root": "r"},
        super_users=["User:root"],
    )
    with EmbeddedKafka(security=security) as broker:
        broker.create_topic("seen")
        broker.create_topic("hidden")

        def seen_by(user: str, password: str) -> set[str]:
            return topics(
                {
                    "bootstrap.servers": broker.servers_of("SCRAM"),
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "SCRAM-SHA-256",
                    "sasl.username": user,
                    "sasl.password": password,
                }
            )

        assert seen_by("root", "r") >= {"seen", "hidden"}
        assert seen_by("alice", "a") == set()
        acl = AclBinding(
            ResourceType.TOPIC,
            "seen",
            ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        admin = admin_client(broker.bootstrap_servers)
        admin.create_acls([acl])[acl].result(60)
        assert seen_by("alice", "a") == {"seen"}
        broker.stop()
        broker.start()
        assert seen_by("alice", "a") == {"seen"}
