"""When the heartbeat thread asks whether heartbeats are due, which it does without the lock."""

from contextlib import closing

from spark_eos._client.settings import ClientSettings
from spark_eos._driver.assigned_partitions import IdPartition, Member
from spark_eos._driver.membership import GroupMembership
from spark_eos._kafka.connection import Connections


def test_a_takeover_in_the_middle_of_the_question_does_not_end_the_thread() -> None:
    with closing(Connections(ClientSettings({"bootstrap.servers": "127.0.0.1:1"}))) as connections:
        membership = GroupMembership(
            connections,
            "group",
            max_members=2,
            group_timeout_ms=1_000,
            watch=lambda: True,
            at_end=lambda: None,
        )

        class TakenOver(Member):
            @property
            def owned(self) -> frozenset[IdPartition]:
                # As another thread's takeover does between two members.
                membership._members.clear()
                return frozenset()

        names = ("spark-eos-0", "spark-eos-1")
        membership._members = {name: TakenOver(name, "id", 1) for name in names}
        assert not membership._is_beat_due(0.1)
        assert membership._members == {}
