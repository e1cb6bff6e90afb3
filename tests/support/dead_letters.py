"""Dead-letter topics, and what their records tell."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Message

from support.flow import Flow


def letter_topic(flow: Flow, config: Mapping[str, str] | None = None) -> str:
    """A dead-letter topic of three partitions for a flow."""
    topic = f"dlq-{flow.name}"
    flow.broker.create_topic(topic, 3, dict(config or {}))
    return topic


def headers_of(message: Message) -> dict[str, str]:
    """A record's headers as text."""
    headers: Any = message.headers() or ()
    return {name: (content or b"").decode() for name, content in headers}
