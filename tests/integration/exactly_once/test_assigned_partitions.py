"""The assigned-partition rule (KAFKA-20191): against a model, case by case, and on the real broker.

Kafka 4.4.0 compares a member epoch that is older than the member's current one with the epochs at
which its partitions were assigned (KIP-1251); at the current epoch, a member may commit any
partition. spark-eos checks the rest.
"""

import itertools
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from spark_eos._exactly_once import task
from spark_eos._exactly_once.members import Member, after_heartbeat, committable, may_commit
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.offsets import group_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import Assignment, MemberIdentity
from spark_eos._worker.plan import BatchPlan, BatchRange, batch_plan
from spark_eos._worker.task_report import REJECTED, WRITTEN
from support.flow import Flow
from support.groups import positions
from support.manual_members import ManualMembers
from support.members import deadline, writer_settings
from support.versions import STALE_EPOCH
from support.writing import close_producers, outcome_of, row_batch

_ACCEPTED, _STALE = 0, int(STALE_EPOCH)


# A model -------------------------------------------------------------------------------------

_TOPIC = uuid.UUID(int=20191)
_NAME = "orders"
_INSTANCES = ("spark-eos-0", "spark-eos-1", "spark-eos-2")
_PARTITIONS = range(4)


@dataclass
class _Seat:
    """A member as the group coordinator sees it."""

    member_id: str
    epoch: int
    came: dict[int, int] = field(default_factory=dict)
    revoking: dict[int, int] = field(default_factory=dict)
    # Partitions given up, with the epoch at that time, which is not always raised immediately.
    given_up: dict[int, int] = field(default_factory=dict)


class _Group:
    """A consumer group (KIP-848), as far as commits need it.

    Tenures are tracked separately, without epochs: who has held each partition without a break, and
    since when. A holder that was asked to give a partition up holds it until it confirms this.
    """

    def __init__(self) -> None:
        self.epoch = 1
        self.seats: dict[str, _Seat] = {}
        self.target: dict[int, str] = {}
        self.tenures: dict[int, tuple[str, int]] = {}
        self.moment = 0

    def assign(self, partition: int, instance_id: str | None) -> None:
        self.epoch += 1
        if instance_id is None:
            self.target.pop(partition, None)
        else:
            self.target[partition] = instance_id

    def leave(self, instance_id: str) -> None:
        seat = self.seats.pop(instance_id)
        self._end(seat.member_id, {*seat.came, *seat.revoking})
        self.target = {p: i for p, i in self.target.items() if i != instance_id}
        self.epoch += 1

    def replace(self, instance_id: str, member_id: str) -> None:
        """A static member returns with another member id and keeps the old member's partitions."""
        seat = self.seats[instance_id]
        self._end(seat.member_id, {*seat.came, *seat.revoking})
        seat.member_id, seat.revoking, seat.given_up = member_id, {}, {}
        for partition in seat.came:
            self.tenures[partition] = (member_id, self.moment)

    def _end(self, member_id: str, partitions: set[int]) -> None:
        for partition in partitions:
            if self.tenures.get(partition, ("", 0))[0] == member_id:
                del self.tenures[partition]

    def heartbeat(self, instance_id: str, owned: set[int]) -> tuple[int, set[int]]:
        """A member's heartbeat with its owned partitions; returns its new epoch and assignment."""
        seat = self.seats[instance_id]
        mine = {p for p, i in self.target.items() if i == instance_id}
        if not seat.revoking.keys() & owned:
            seat.given_up.update(dict.fromkeys(seat.revoking, seat.epoch))
            self._end(seat.member_id, set(seat.revoking))
            seat.revoking = {p: e for p, e in seat.came.items() if p not in mine}
            seat.came = {p: e for p, e in seat.came.items() if p in mine}
            if not seat.revoking:
                seat.epoch = self.epoch
                for partition in mine - seat.came.keys():
                    if partition not in self.tenures:
                        seat.came[partition] = seat.epoch
                        self.tenures[partition] = (seat.member_id, self.moment)
        return seat.epoch, set(seat.came)

    def accepts(self, member_id: str, epoch: int, partition: int) -> bool:
        """Kafka 4.4.0's answer to a commit: it accepts any partition at the current epoch."""
        seat = next((s for s in self.seats.values() if s.member_id == member_id), None)
        if seat is None or epoch > seat.epoch:
            return False
        came = {**seat.came, **seat.revoking}
        return epoch == seat.epoch or came.get(partition, epoch + 1) <= epoch

    def in_the_gap(self, member_id: str, epoch: int, partition: int) -> bool:
        """Return True if Kafka 4.4.0 accepts a commit only until revocation raises the epoch."""
        seat = next((s for s in self.seats.values() if s.member_id == member_id), None)
        return seat is not None and seat.given_up.get(partition) == epoch == seat.epoch

    def held_since(self, member_id: str, partition: int, moment: int) -> bool:
        holder, since = self.tenures.get(partition, ("", 0))
        return holder == member_id and since <= moment


class AssignmentHistories(RuleBasedStateMachine):
    """A driver plans by the rule while the group changes at will; commits may be very late."""

    @initialize()
    def start(self) -> None:
        self.group = _Group()
        self.driver: dict[str, Member] = {}
        # Planned commits, each with the moment of its plan; none is ever too old to arrive.
        self.in_flight: list[tuple[MemberIdentity, int, int]] = []
        self.ids = itertools.count()
        # By member id: the epochs it was told, and how many answers it missed.
        self.announced: dict[str, set[int]] = defaultdict(set)
        self.missed: Counter[str] = Counter()
        # Begin with a group at work, which random steps would take long to reach.
        for instance_id in _INSTANCES:
            self.join_or_take_over(instance_id)
        for partition in _PARTITIONS:
            self.assign_or_give_back(partition, _INSTANCES[partition % 2])
        self.everyone_beats_until_nothing_changes()

    def _tick(self) -> None:
        self.group.moment += 1

    def _deliver(self, instance_id: str, answer: tuple[int, set[int]], *, in_full: bool) -> None:
        epoch, assigned = answer
        member = self.driver[instance_id]
        self.announced[member.member_id].add(epoch)
        unchanged = {p for _, p in member.owned} == assigned
        assignment = None if unchanged and not in_full else {(_TOPIC, p) for p in assigned}
        self.driver[instance_id] = after_heartbeat(
            replace(member, acknowledged=member.owned), epoch, assignment
        )

    @rule(instance_id=st.sampled_from(_INSTANCES))
    def join_or_take_over(self, instance_id: str) -> None:
        """A new member id: it joins, or replaces the old member."""
        self._tick()
        member_id = f"member-{next(self.ids)}"
        if instance_id in self.group.seats:
            self.group.replace(instance_id, member_id)
        else:
            self.group.seats[instance_id] = _Seat(member_id, self.group.epoch)
        self.driver[instance_id] = Member(instance_id, member_id, 0)
        self._deliver(instance_id, self.group.heartbeat(instance_id, set()), in_full=True)

    @rule(partition=st.sampled_from(_PARTITIONS), instance_id=st.sampled_from(_INSTANCES))
    def assign_or_give_back(self, partition: int, instance_id: str) -> None:
        self._tick()
        self.group.assign(partition, instance_id if instance_id in self.group.seats else None)

    @rule(partition=st.sampled_from(_PARTITIONS))
    def revoke(self, partition: int) -> None:
        self._tick()
        self.group.assign(partition, None)

    @precondition(lambda self: self.group.seats)
    @rule(data=st.data(), in_full=st.booleans(), lost=st.booleans())
    def heartbeat(self, data: st.DataObject, in_full: bool, lost: bool) -> None:  # noqa: FBT001
        self._tick()
        instance_id = data.draw(st.sampled_from(sorted(self.group.seats)))
        owned = {p for _, p in self.driver[instance_id].owned}
        answer = self.group.heartbeat(instance_id, owned)
        if lost:
            self.missed[self.driver[instance_id].member_id] += 1
        else:
            self._deliver(instance_id, answer, in_full=in_full)

    @precondition(lambda self: self.group.seats)
    @rule(data=st.data())
    def session_ends(self, data: st.DataObject) -> None:
        """The broker drops a member; the driver does not know yet."""
        self._tick()
        self.group.leave(data.draw(st.sampled_from(sorted(self.group.seats))))

    @rule()
    def plan(self) -> None:
        self._tick()
        batch = BatchRange(0, {}, {TopicPartition(_NAME, p): 100 for p in _PARTITIONS})
        for member in self.driver.values():
            assigned = frozenset(TopicPartition(_NAME, p) for _, p in committable(member))
            assignment = Assignment(member.identity, assigned)
            planned = batch_plan(batch, {}, assignment, {_NAME: _TOPIC}, KnownPartitions())
            assert planned.partitions.keys() == assigned
            for _, partition in assigned:
                self.in_flight.append((planned.member, partition, self.group.moment))

    @precondition(lambda self: self.driver)
    @rule()
    def everyone_beats_until_nothing_changes(self) -> None:
        for _ in range(4):
            for instance_id in sorted(self.group.seats):
                self._tick()
                owned = {p for _, p in self.driver[instance_id].owned}
                self._deliver(instance_id, self.group.heartbeat(instance_id, owned), in_full=True)
        lost = self.driver.keys() - self.group.seats.keys()
        self.driver = {i: m for i, m in self.driver.items() if i not in lost}
        # Nothing is left out that could be committed.
        members = self.driver.values()
        found = {p: m.instance_id for m in members for _, p in committable(m)}
        assert found == self.group.target

    @invariant()
    def no_planned_commit_is_accepted_of_a_partition_that_was_lost_since(self) -> None:
        """Except in the gap, in which only the new member ids of a takeover fence."""
        for member, partition, planned_at in getattr(self, "in_flight", ()):
            planned = (member.member_id, member.epoch, partition)
            if self.group.accepts(*planned) and not self.group.in_the_gap(*planned):
                assert self.group.held_since(member.member_id, partition, planned_at)

    @invariant()
    def the_driver_judges_every_epoch_as_the_group_would(self) -> None:
        for instance_id, member in getattr(self, "driver", {}).items():
            seat = self.group.seats.get(instance_id)
            known = {p for _, p in member.owned}
            if seat is None or (member.epoch, known) != (seat.epoch, set(seat.came)):
                continue
            for partition, epoch in itertools.product(_PARTITIONS, range(seat.epoch + 2)):
                allowed = may_commit(member, (_TOPIC, partition), epoch)
                lawful = seat.came.get(partition, seat.epoch + 1) <= epoch <= seat.epoch
                assert lawful or not allowed
                # After a missed answer, a driver may take an assignment to be newer than it is.
                if epoch in self.announced[member.member_id] and not self.missed[member.member_id]:
                    assert allowed == lawful


TestAssignmentHistories = AssignmentHistories.TestCase
TestAssignmentHistories.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, derandomize=True
)


# The table, row by row -----------------------------------------------------------------------


@pytest.fixture
def group(new_flow: Callable[..., Flow]) -> Iterator[ManualMembers]:
    """A group of two, ``a`` and ``b``, on four partitions; at first, ``a`` was alone."""
    flow = new_flow(partitions=4)
    with flow.connections() as connections:
        group = ManualMembers(flow, connections)
        group.join("a")
        group.settle()
        group.join("b")
        group.settle()
        assert group.owned("a") | group.owned("b") == {0, 1, 2, 3}
        assert len(group.owned("a")) == 2
        yield group


def _judged(
    group: ManualMembers,
    name: str,
    epoch: int,
    partitions: Collection[int],
    topic: str | None = None,
) -> list[tuple[bool, int]]:
    """Return whether the rule allows committing each partition, with the broker's answer."""
    topic_id, member = group.topic_ids[topic or group.source], group.members[name]
    codes = group.codes(name, epoch, partitions, topic)
    return [(may_commit(member, (topic_id, p), epoch), code) for p, code in codes.items()]


def test_assigned_to_no_member_is_refused(group: ManualMembers) -> None:
    # The target topic: nobody subscribes to it.
    (nobodys,) = set(group.topics) - {group.source}
    now = group.members["a"].epoch
    assert _judged(group, "a", now, [0], nobodys) == [(False, _ACCEPTED)]
    assert _judged(group, "a", now - 1, [0], nobodys) == [(False, _STALE)]


def test_assigned_to_another_member_is_refused(group: ManualMembers) -> None:
    (partition, *_) = sorted(group.owned("b"))
    topic_id = group.topic_ids[group.source]
    assert (topic_id, partition) in committable(group.members["b"])
    now = group.members["a"].epoch
    assert _judged(group, "a", now, [partition]) == [(False, _ACCEPTED)]
    # ``a`` had it, at the epoch before.
    assert _judged(group, "a", now - 1, [partition]) == [(False, _STALE)]


def test_assigned_to_this_member_at_the_current_epoch_is_valid(group: ManualMembers) -> None:
    for name in ("a", "b"):
        now, owned = group.members[name].epoch, group.owned(name)
        assert _judged(group, name, now, owned) == [(True, _ACCEPTED)] * 2


def test_assigned_before_the_epoch_was_raised_is_accepted(
    group: ManualMembers,
) -> None:
    older, kept = group.members["a"].epoch - 1, group.owned("a")
    assert older >= 1
    assert _judged(group, "a", older, kept) == [(True, _ACCEPTED)] * 2


def test_revoked_and_given_back_since_is_refused(group: ManualMembers) -> None:
    older, kept, lost = group.members["a"].epoch - 1, group.owned("a"), group.owned("b")
    group.leave("b")
    group.settle()
    assert group.owned("a") == {0, 1, 2, 3}
    assert _judged(group, "a", older, lost) == [(False, _STALE)] * 2
    assert _judged(group, "a", older, kept) == [(True, _ACCEPTED)] * 2
    assert _judged(group, "a", group.members["a"].epoch, kept | lost) == [(True, _ACCEPTED)] * 4


def test_an_epoch_from_the_future_is_refused(group: ManualMembers) -> None:
    future, owned = group.members["a"].epoch + 1, group.owned("a")
    assert _judged(group, "a", future, owned) == [(False, _STALE)] * 2


def test_a_lost_partition_is_committed_until_the_epoch_is_raised(
    group: ManualMembers,
) -> None:
    # A gap of Kafka 4.4.0: a member that has given a partition up, and is to give up more, keeps
    # its epoch, and may commit what another member owns. A plan of ours leaves the partition out;
    # what was planned before is fenced by taking the member over, not by its epoch.
    group.leave("b")
    group.settle()
    epoch = group.members["a"].epoch
    group.join("b")
    group.heartbeat("a")
    lost = {0, 1, 2, 3} - group.owned("a")
    group.join("c")
    group.join("d")
    group.heartbeat("a")
    group.heartbeat("b", "c", "d")
    member = group.members["a"]
    assert (member.epoch, len(member.acknowledged - member.owned)) == (epoch, 1)
    taken = lost & (group.owned("b") | group.owned("c") | group.owned("d"))
    assert taken
    assert set(_judged(group, "a", epoch, taken)) == {(False, _ACCEPTED)}
    group.heartbeat("a")
    assert group.members["a"].epoch > epoch
    assert set(_judged(group, "a", epoch, taken)) == {(False, _STALE)}


# Histories on the real broker ----------------------------------------------------------------

_STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "heartbeat", "heartbeat"]), st.sampled_from("abc")),
    min_size=6,
    max_size=16,
)


@pytest.mark.slow
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    # Histories are short; making failing ones shorter takes minutes.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=_STEPS)
def test_the_broker_judges_older_epochs_by_the_same_rule(
    flow_of_4: Flow, steps: list[tuple[str, str]]
) -> None:
    with flow_of_4.connections() as connections:
        group = ManualMembers(flow_of_4, connections, f"group-{uuid.uuid4()}")
        for step, name in [("join", "a"), ("heartbeat", "a"), *steps]:
            if (step == "join") == (name in group.members):
                continue
            if step == "leave":
                group.leave(name)
                continue
            before = group.members.get(name)
            group.join(name) if step == "join" else group.heartbeat(name)
            member = group.members[name]
            for epoch in range(1, member.epoch):
                expected = {}
                for partition in range(4):
                    held = (group.topic_ids[group.source], partition)
                    # Until it confirms that it lost a partition, nobody else is given it, and the
                    # broker still takes its commits. A plan of ours has left it out already.
                    giving_up = before is not None and held in member.acknowledged - member.owned
                    judged = before if before is not None and giving_up else member
                    yes = may_commit(judged, held, epoch)
                    expected[partition] = _ACCEPTED if yes else _STALE
                assert group.codes(name, epoch, range(4)) == expected, (epoch, group.members)
        for name in list(group.members):
            group.leave(name)


@pytest.fixture
def flow_of_4(new_flow: Callable[..., Flow]) -> Flow:
    return new_flow(partitions=4)


# What happens without the rule ---------------------------------------------------------------


_RULE, _EPOCH_ONLY = "by the rule", "by a valid epoch alone"


def _plan(group: ManualMembers, name: str, partition: int, how: str) -> BatchPlan:
    """The plan of one member's task for one partition."""
    member, topic_id = group.members[name], group.topic_ids[group.source]
    assigned = committable(member) if how == _RULE else {(topic_id, partition)}
    partitions = frozenset(TopicPartition(group.source, index) for _, index in assigned)
    committed = _committed(group)
    return batch_plan(
        BatchRange(0, {}, {TopicPartition(group.source, partition): 10_000}),
        committed,
        Assignment(member.identity, partitions),
        {group.source: topic_id},
        KnownPartitions(),
    )


def _committed(group: ManualMembers) -> dict[TopicPartition, int]:
    every = [TopicPartition(group.source, p) for p in range(group.topics[group.source].partitions)]
    found = group_offsets(group.connections, group.group_id, every, group.topic_ids, deadline())
    return positions(found)


def _write(flow: Flow, plan: BatchPlan, partition: int, *offsets: int) -> tuple[str, int, int]:
    """A task with rows of a partition: its report, rows written and rows skipped."""
    work = task.write_task(writer_settings(flow), plan)
    reports = work(iter([row_batch(flow, partition, *offsets)]))
    outcome = outcome_of(reports)
    part = outcome.partitions[TopicPartition(flow.source, partition)]
    return part.status, part.rows, part.skipped


@pytest.fixture
def moved(flow: Flow) -> Iterator[tuple[ManualMembers, int, BatchPlan]]:
    """A partition that moved from ``b`` to ``a``, and ``b``'s plan from before."""
    with flow.connections() as connections:
        group = ManualMembers(flow, connections)
        group.join("b")
        group.settle()
        older = {p: _plan(group, "b", p, _RULE) for p in group.owned("b")}
        group.join("a")
        group.settle()
        (partition,) = group.owned("a")
        yield group, partition, older[partition]
    close_producers()


def test_without_the_rule_records_of_another_member_are_skipped(
    flow: Flow, moved: tuple[ManualMembers, int, BatchPlan]
) -> None:
    group, partition, _older = moved
    bs = _plan(group, "b", partition, _EPOCH_ONLY)
    assert _write(flow, bs, partition, 9_998) == (WRITTEN, 1, 0)
    assert flow.committed() == {partition: 9_999}
    # ``a`` goes on from there: ten records that nobody wrote, and nobody will.
    plan = _plan(group, "a", partition, _RULE)
    assert _write(flow, plan, partition, *range(10)) == (WRITTEN, 0, 10)
    assert flow.values() == [f"{partition}/9998"]


@pytest.mark.parametrize("plan", ["of now", "of the time before"])
def test_with_the_rule_nothing_is_committed_or_skipped(
    flow: Flow, moved: tuple[ManualMembers, int, BatchPlan], plan: str
) -> None:
    group, partition, older = moved
    bs = _plan(group, "b", partition, _RULE) if plan == "of now" else older
    # Now the driver leaves it out; before, it was in, and the broker refuses the epoch.
    assert len(bs.partitions) == (0 if plan == "of now" else 1)
    assert _write(flow, bs, partition, 9_998) == (REJECTED, 0, 0)
    assert flow.committed() == {}
    plan_of_a = _plan(group, "a", partition, _RULE)
    assert _write(flow, plan_of_a, partition, *range(10)) == (WRITTEN, 10, 0)
    assert sorted(flow.values()) == [f"{partition}/{n}" for n in range(10)]
    assert flow.committed() == {partition: 10}
