"""Histories of a transactional id in a coordinator's log."""

import pytest

from chaos.broker_logs import State
from chaos.lockstep import Logged, _compare, _Part, _transactions
from spark_eos._kafka.topic_partition import TopicPartition

_OUT = TopicPartition("out", 0)
_OPEN = ["it was neither committed nor aborted"]


@pytest.mark.parametrize(
    ("names", "records", "problems"),
    [
        ("Empty Ongoing PrepareCommit CompleteCommit Empty", 0, [[]]),
        ("Empty Ongoing", 0, [_OPEN]),
        ("Empty Ongoing", 1, [_OPEN]),
        # The coordinator could not replicate the beginning, and does not have the transaction.
        ("Empty Ongoing Empty", 0, [[]]),
        ("Empty Ongoing Empty", 1, [_OPEN]),
        ("Empty Ongoing Empty Ongoing PrepareAbort CompleteAbort", 0, [[], []]),
        ("Empty Ongoing Empty Ongoing", 0, [[], _OPEN]),
    ],
)
def test_transactions_without_an_end(names: str, records: int, problems: list[list[str]]) -> None:
    states = [
        State("eos/1", 7, name, frozenset(), time_ms) for time_ms, name in enumerate(names.split())
    ]
    (transactions,) = _transactions(states, "eos/", Logged()).values()
    parts = {_OUT: _Part(_OUT)} if records else {}
    found = []
    for transaction in transactions:
        transaction.partitions = frozenset(parts)
        logged = Logged()
        # A missing offset of a committed transaction is not the subject here.
        if not transaction.commit:
            _compare(transaction, parts, logged, drained=True)
        found.append([problem.partition(": ")[2] for problem in logged.problems])
    assert found == problems
