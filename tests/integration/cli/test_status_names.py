"""Names that others have chosen, on a terminal."""

from support.flow import Flow
from support.foreign_consumer import foreign_consumer
from support.operating import run

EVIL = "evil\x1b[2J\x1b]0;owned\x07\r\n\x9b31m\u202e[red]"


def test_a_clients_id_moves_no_cursor(flow: Flow) -> None:
    """Any client chooses its own id; a broker tells it to everyone who asks."""
    with foreign_consumer(flow, client_id=EVIL):
        (member,) = flow.members()
        assert member.client_id == EVIL
        assert str(member).isprintable()
        shown = run("status", flow).output
    assert "evil" in shown
    assert [line for line in shown.splitlines() if not line.isprintable()] == []
