"""The first act: a query is killed in the middle of a batch, twice, then loses its checkpoint.

Each sink's query copies the same orders: started and killed; started again and killed again; its
checkpoint deleted, started again and left to finish.
"""

import shutil
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from spark_eos.demo.performance import KILLS_AFTER, Performance, Script
from spark_eos.demo.theatre import PARTITIONS, SOURCE, Contender, Theatre
from spark_eos.demo.verdict import Tally, tally
from spark_eos.testing.broker_admin import end_offsets

_SCRIPT: Final = Script("orders", "orders", batches=12, row_per_order=True)
_TIMEOUT: Final = 15.0


@dataclass(frozen=True)
class Outcome:
    """The result of a contender.

    Attributes:
        tally: The counts of its target topic.
        before_loss: Number of duplicates before the checkpoint was deleted.
    """

    tally: Tally
    before_loss: int


def play(contender: Contender, theatre: Theatre) -> Outcome:
    """Plays the act with one contender and counts the result.

    Args:
        contender: The contender.
        theatre: Where it is played.

    Raises:
        DemoError: The query fails or makes no progress.
        LingeringTransactionError: A transaction is still open after the end.
    """
    stage = theatre.stage
    with Performance(_SCRIPT, contender, theatre) as performance:
        title, reader = performance.title, performance.reader
        with stage.scene(f"{title}: started", theatre.orders):
            performance.play_until_killed(KILLS_AFTER[0])
            stage.retitle(f"{title}: started again")
            performance.play_until_killed(KILLS_AFTER[1])
            before_loss = reader.duplicates
            shutil.rmtree(performance.checkpoint_location)
            stage.retitle(f"{title}: checkpoint deleted")
            performance.play_to_the_end()
        return Outcome(
            tally(
                theatre.orders,
                reader.counts,
                open_transactions=len(performance.open_transactions()),
                group_lag=_group_lag(performance, theatre) if contender.has_group else None,
            ),
            before_loss,
        )


def _group_lag(performance: Performance, theatre: Theatre) -> int:
    """Returns the lag as a client other than the committing one sees it."""
    servers = theatre.kafka.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    partitions = [TopicPartition(SOURCE, index) for index in range(PARTITIONS)]
    consumer = Consumer({"bootstrap.servers": servers, "group.id": performance.group_id})
    with closing(consumer):
        found = consumer.committed(partitions, timeout=_TIMEOUT)
    ends = end_offsets(admin, SOURCE, range(PARTITIONS))
    return sum(ends.values()) - sum(max(0, p.offset) for p in found)
