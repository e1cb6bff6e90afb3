"""A real broker and a real Spark for tests.

- `EmbeddedKafka`: a Kafka broker that starts in a second and leaves nothing behind.
- `spark_session`: a local Spark session that can read from Kafka.

With pytest, the fixtures ``embedded_kafka`` and ``spark_eos_session`` give one of each.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_eos.testing.broker import EmbeddedKafka
    from spark_eos.testing.broker_image import BrokerStartError
    from spark_eos.testing.spark import spark_session

__all__ = ["BrokerStartError", "EmbeddedKafka", "spark_session"]


def __getattr__(name: str) -> object:
    # Imported on first use: the pytest plugin lies in this package and must load quickly, and the
    # broker needs no pyspark.
    if name == "EmbeddedKafka":
        from spark_eos.testing.broker import EmbeddedKafka  # noqa: PLC0415

        return EmbeddedKafka
    if name == "BrokerStartError":
        from spark_eos.testing.broker_image import BrokerStartError  # noqa: PLC0415

        return BrokerStartError
    if name == "spark_session":
        from spark_eos.testing.spark import spark_session  # noqa: PLC0415

        return spark_session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
