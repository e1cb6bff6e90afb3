"""Measures how joining, takeover and heartbeats scale with the number of group members.

.venv/bin/python benchmarks/members.py --members 200
"""

import threading
import time
import uuid
from contextlib import closing

import click
from rich.console import Console
from rich.table import Table

from spark_eos._client.settings import ClientSettings
from spark_eos._exactly_once.members import GroupMembership
from spark_eos._kafka import cluster, groups
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.testing import EmbeddedKafka


def _deadline() -> Deadline:
    return Deadline(60, "benchmark")


def _measure(broker: EmbeddedKafka, members: int, seconds: float) -> dict[str, float]:
    topic = f"in-{uuid.uuid4().hex[:6]}"
    broker.create_topic(topic, members)
    needed = [TopicPartition(topic, partition) for partition in range(members)]
    with closing(
        Connections(ClientSettings({"bootstrap.servers": broker.bootstrap_servers}))
    ) as connections:
        topics = cluster.topics(connections, [topic], _deadline())
        membership = GroupMembership(
            connections,
            topic,
            max_members=members,
            group_timeout_ms=60_000,
            watch=lambda: True,
            at_end=lambda: None,
        )
        found = {}
        began = time.monotonic()
        membership.start(topics, needed)
        found["stable"] = time.monotonic() - began
        owners = {identity.member_id for identity in membership.identities().values()}
        if (
            not groups.describe_group(connections, topic, _deadline()).stable
            or len(owners) < members
        ):
            raise click.ClickException(f"{len(owners)} of {members} members have a partition")
        # From here on, only heartbeats run in this process.
        busy = time.process_time()
        threading.Event().wait(seconds)
        found["core"] = (time.process_time() - busy) / seconds
        began = time.monotonic()
        membership.take_over_own(topics, needed)
        found["taken over"] = time.monotonic() - began
        began = time.monotonic()
        membership.leave()
        found["left"] = time.monotonic() - began
    return found


@click.command()
@click.option(
    "--members", default=200, show_default=True, help="Number of members of the largest group."
)
@click.option("--seconds", default=20.0, show_default=True, help="Time to measure heartbeats for.")
def main(members: int, seconds: float) -> None:
    """Measure groups of growing size on the embedded broker with its default 5 s heartbeats."""
    table = Table(title="Members of one group, one source partition each")
    for column in ("members", "joined and stable", "taken over", "left", "heartbeats, % of a core"):
        table.add_column(column, justify="right")
    with EmbeddedKafka() as broker:
        # This one doesn't count, since the broker's first group takes longer.
        _measure(broker, 1, 0.1)
        for count in sorted({1, members // 10, members // 2, members}):
            found = _measure(broker, count, seconds)
            table.add_row(
                str(count),
                *(f"{found[name]:.2f} s" for name in ("stable", "taken over", "left")),
                f"{found['core']:.2%}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
