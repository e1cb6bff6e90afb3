"""Administration of an embedded broker."""

from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

TIMEOUT = 30.0
"""Seconds that one administrative call may take."""


def admin_client(address: str) -> AdminClient:
    """Return a client for administration that is quiet when the broker goes away."""
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        # Brokers here are killed and paused on purpose: nothing to complain about on stderr.
        "log_level": 0,
        "error_cb": lambda _: None,
    }
    return AdminClient(settings)


def answers(admin: AdminClient) -> bool:
    """Return whether the broker serves requests, after a second at most."""
    try:
        # A broker is listed in the metadata only once it may have partitions.
        return bool(admin.list_topics(timeout=1).brokers)
    except KafkaException:
        return False


def await_partitions(admin: AdminClient, topic: str, count: int) -> None:
    """Wait until a topic has `count` partitions that can be used; 0 waits until it is gone."""

    def usable() -> bool:
        found = admin.list_topics(timeout=TIMEOUT).topics.get(topic)
        partitions = found.partitions.values() if found is not None else ()
        return len(partitions) == count and all(p.leader >= 0 for p in partitions)

    Retrying(
        retry=retry_if_result(lambda result: not result),
        wait=wait_fixed(0.01),
        stop=stop_after_delay(TIMEOUT),
        reraise=True,
    )(usable)
