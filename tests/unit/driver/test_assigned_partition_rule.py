"""The assigned-partition rule, against a plain history."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_eos._driver.assigned_partitions import Member, after_heartbeat, may_commit, owners

_TOPIC = uuid.uuid4()


@pytest.mark.parametrize(
    ("assigned", "client_epoch", "allowed"),
    [
        ({}, 5, False),  # assigned to nobody, or to another member
        ({(_TOPIC, 0): 5}, 5, True),
        ({(_TOPIC, 0): 3}, 4, True),  # a heartbeat has raised the broker's epoch since
        ({(_TOPIC, 0): 5}, 4, False),  # revoked and given back since
        ({(_TOPIC, 0): 5}, 6, False),  # from the future
    ],
)
def test_the_assigned_partition_rule(
    assigned: dict[tuple[uuid.UUID, int], int],
    client_epoch: int,
    allowed: bool,  # noqa: FBT001
) -> None:
    member = Member("spark-eos-0", "m", 5, assigned)
    assert may_commit(member, (_TOPIC, 0), client_epoch) is allowed


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.one_of(st.none(), st.frozensets(st.integers(0, 3)))),
        max_size=30,
    )
)
def test_assignment_epochs_against_a_plain_history(
    heartbeats: list[tuple[int, frozenset[int] | None]],
) -> None:
    member, history = Member("spark-eos-0", "m", 1), [(1, frozenset[int]())]
    for step, assigned in heartbeats:
        epoch = history[-1][0] + step
        now = history[-1][1] if assigned is None else assigned
        history.append((epoch, now))
        given_now = None if assigned is None else {(_TOPIC, p) for p in assigned}
        member = after_heartbeat(member, epoch, given_now)
    last = history[-1][0]
    for partition in range(4):
        for client_epoch in range(last + 2):
            expected = client_epoch <= last and _unbroken(history, partition, client_epoch)
            assert may_commit(member, (_TOPIC, partition), client_epoch) is expected


def _unbroken(history: list[tuple[int, frozenset[int]]], partition: int, client_epoch: int) -> bool:
    """Whether the partition's present tenure began at the client's epoch or before."""
    began = None
    for epoch, held in history:
        if partition not in held:
            began = None
        elif began is None:
            began = epoch
    return began is not None and began <= client_epoch


def test_each_partition_has_one_owner() -> None:
    first = Member("spark-eos-0", "a", 3, {(_TOPIC, 0): 2})
    second = Member("spark-eos-1", "b", 3, {(_TOPIC, 1): 3})
    assert owners([first, second]) == {(_TOPIC, 0): first, (_TOPIC, 1): second}
