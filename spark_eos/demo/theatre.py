"""Where the acts are played, and by whom."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_eos.demo.stage import Stage
from spark_eos.errors import PrintableError
from spark_eos.testing import EmbeddedKafka

PARTITIONS: Final = 4
"""Number of partitions of each topic."""

SOURCE: Final = "orders"
"""The topic that has the orders."""


class DemoError(PrintableError):
    """The demonstration can't continue; the message ends with the query's log, if there is one."""


@dataclass(frozen=True)
class Contender:
    """A sink in the play.

    Attributes:
        sink: Its name in `spark_eos.demo.query`, and in the names of topics and files.
        title: Its name on the terminal.
        has_group: Whether its query commits offsets of a consumer group.
    """

    sink: str
    title: str
    has_group: bool


EXACTLY_ONCE: Final = Contender("exactly-once", "spark-eos", has_group=True)
SPARKS_OWN: Final = Contender("spark", "Spark's own sink", has_group=False)


@dataclass(frozen=True)
class Theatre:
    """Where the acts are played.

    Attributes:
        kafka: A running broker that has the orders in `SOURCE`.
        orders: Number of orders.
        directory: Directory for checkpoints and temporary files.
        logs: Directory for the queries' logs.
        stage: Shows the play on the terminal.
    """

    kafka: EmbeddedKafka
    orders: int
    directory: Path
    logs: Path
    stage: Stage
