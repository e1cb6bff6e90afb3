"""Topics that accept only small records, and config changes while a query runs."""

from collections.abc import Mapping

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
    """Changes a topic's max.message.bytes and waits until the broker applies it."""
    configure(flow, topic, {"max.message.bytes": str(limit)})


def configure(
    flow: Flow, name: str, configs: Mapping[str, str], kind: ResourceType = ResourceType.TOPIC
) -> None:
    """Sets configs of a topic or a group and waits until the broker applies them."""
    entries = [
        ConfigEntry(config, value, incremental_operation=AlterConfigOpType.SET)
        for config, value in configs.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin = admin_client(flow.broker.bootstrap_servers)
    admin.incremental_alter_configs([resource])[resource].result(60)

    def known() -> bool:
        described = ConfigResource(kind, name)
        found = admin.describe_configs([described])[described].result(60)
        return all(found[config].value == value for config, value in configs.items())

    until(known, lambda: f"the new {', '.join(configs)} of {name}")
