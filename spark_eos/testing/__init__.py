"""A real broker, a real schema registry and a real Spark for tests.

- `EmbeddedKafka`: a Kafka broker, or a cluster of several, that starts in a second and leaves
  nothing behind. With `BrokerSecurity`, it has ACLs and listeners with TLS and SASL.
- `EmbeddedSchemaRegistry`: a schema registry that starts in a few seconds.
- `spark_session`: a local Spark session that can read from Kafka.
- `produce` and `consume_committed`: write and read records as DataFrames.
- `process_available`: runs a query until it has processed everything available.

In pytest, the fixtures ``embedded_kafka``, ``schema_registry`` and ``spark_eos_session`` provide a
broker, a registry and a session.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_eos.testing.broker import EmbeddedKafka
    from spark_eos.testing.broker_image import BrokerStartError
    from spark_eos.testing.broker_node import KafkaNode
    from spark_eos.testing.broker_security import BrokerSecurity, Certificate, SecuredListener
    from spark_eos.testing.records import consume_committed, process_available, produce
    from spark_eos.testing.registry import EmbeddedSchemaRegistry, RegistryStartError
    from spark_eos.testing.spark import spark_session

__all__ = [
    "BrokerSecurity",
    "BrokerStartError",
    "Certificate",
    "EmbeddedKafka",
    "EmbeddedSchemaRegistry",
    "KafkaNode",
    "RegistryStartError",
    "SecuredListener",
    "consume_committed",
    "process_available",
    "produce",
    "spark_session",
]

_HOMES = {
    "BrokerSecurity": "broker_security",
    "BrokerStartError": "broker_image",
    "Certificate": "broker_security",
    "EmbeddedKafka": "broker",
    "EmbeddedSchemaRegistry": "registry",
    "KafkaNode": "broker_node",
    "RegistryStartError": "registry",
    "SecuredListener": "broker_security",
    "consume_committed": "records",
    "process_available": "records",
    "produce": "records",
    "spark_session": "spark",
}


def __getattr__(name: str) -> object:
    # Import names on first use: the pytest plugin in this package must load quickly, and the
    # broker doesn't need pyspark.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
