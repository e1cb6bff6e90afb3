"""Topics that take small records only."""

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from spark_eos.testing.broker_admin import admin_client
from support.flow import Flow
from support.queries import until


def small_topic(flow: Flow, limit: int = 20_000, configs: dict[str, str] | None = None) -> str:
    """A topic of the flow with one partition and this max.message.bytes."""
    name = f"small-{limit}-{flow.name}"
    flow.broker.create_topic(name, 1, {"max.message.bytes": str(limit), **(configs or {})})
    return name


def set_limit(flow: Flow, topic: str, limit: int) -> None:
    """Changes the max.message.bytes of a topic, and waits until the broker goes by it."""
    name, value = "max.message.bytes", str(limit)
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = admin_client(flow.broker.bootstrap_servers)
    admin.incremental_alter_configs([resource])[resource].result(60)

    def known() -> bool:
        described = ConfigResource(ResourceType.TOPIC, topic)
        return bool(admin.describe_configs([described])[described].result(60)[name].value == value)

    until(known, lambda: f"the new {name} of {topic}")
