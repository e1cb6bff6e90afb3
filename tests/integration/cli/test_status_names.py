"""Names that others have chosen, on a terminal."""

from confluent_kafka import Consumer

from spark_eos._kafka import groups
from spark_eos._kafka.groups import DescribedMember
from support.flow import Flow
from support.members import deadline
from support.operating import run
from support.queries import until

EVIL = "evil\x1b[2J\x1b]0;owned\x07\r\n\x9b31m\u202e[red]"


def test_a_clients_id_moves_no_cursor(flow: Flow) -> None:
    """Any client chooses its own id; a broker tells it to everyone who asks."""
    settings = {"bootstrap.servers": flow.bootstrap_servers, "group.id": flow.group_id}
    consumer = Consumer({**settings, "client.id": EVIL, "group.protocol": "consumer"})
    try:
        consumer.subscribe([flow.source])
        with flow.connections() as connections:

            def members() -> tuple[DescribedMember, ...]:
                consumer.poll(0.1)
                return groups.describe_group(connections, flow.group_id, deadline()).members

            until(lambda: bool(members()), lambda: "the member")
            (member,) = members()
        assert member.client_id == EVIL
        assert str(member).isprintable()
        shown = run("status", flow).output
    finally:
        consumer.close()
    assert "evil" in shown
    assert [line for line in shown.splitlines() if not line.isprintable()] == []
