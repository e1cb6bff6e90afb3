"""The driver's side of the consumer group: a static member, takeover, heartbeats (KIP-848)."""

# To take over a static member, the driver first makes the member leave with its old member id
# (epoch -2), then joins with a new member id and the same instance id. This causes no rebalance,
# and from then on brokers refuse requests with the old member id.

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, cast

from spark_eos import acls
from spark_eos._client.error_codes import Code, code_name, is_final
from spark_eos._kafka import groups, heartbeats
from spark_eos._kafka.cluster import TopicInfo
from spark_eos._kafka.connection import Connections, CoordinatorType
from spark_eos._kafka.deadline import Deadline, RetriableError, group_deadline
from spark_eos._kafka.groups import INSTANCE_PREFIX, RENEWAL_INSTANCE, own_group
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import Assignment, MemberIdentity
from spark_eos.errors import FencedByNewerRunError, ForeignMemberError, SparkEosError, warn

logger = logging.getLogger(__name__)


# The rule: a member may commit offsets of a partition only while
# assignment epoch <= client epoch <= broker epoch. The assignment epoch is the member epoch at
# which the member was assigned the partition. Kafka 4.4 checks this rule only if the client's epoch
# is older than the member's, so the driver checks it for every partition that it plans.
IdPartition = tuple[uuid.UUID, int]


@dataclass(frozen=True)
class Member:
    """A static member as the driver knows it, with the assignment epochs of its partitions."""

    instance_id: str
    member_id: str
    epoch: int
    assignment_epochs: Mapping[IdPartition, int] = field(default_factory=dict)
    # The partitions whose assignment was acknowledged by the last heartbeat that got an answer.
    acknowledged: frozenset[IdPartition] = frozenset()

    @property
    def identity(self) -> MemberIdentity:
        """The member's identity in requests."""
        return MemberIdentity(self.member_id, self.epoch, self.instance_id)

    @property
    def owned(self) -> frozenset[IdPartition]:
        """The partitions that the member is assigned now."""
        return frozenset(self.assignment_epochs)


def after_heartbeat(member: Member, epoch: int, assigned: Iterable[IdPartition] | None) -> Member:
    """Return the member, updated from the answer to its heartbeat."""
    if assigned is None:
        return replace(member, epoch=epoch)
    before = member.assignment_epochs
    return replace(
        member,
        epoch=epoch,
        assignment_epochs={partition: before.get(partition, epoch) for partition in assigned},
    )


def may_commit(member: Member, partition: IdPartition, client_epoch: int) -> bool:
    """Return True if the member has held the partition since ``client_epoch`` or earlier."""
    assignment_epoch = member.assignment_epochs.get(partition)
    return assignment_epoch is not None and assignment_epoch <= client_epoch <= member.epoch


def committable(member: Member) -> frozenset[IdPartition]:
    """Return the partitions that the member may commit at its current epoch."""
    return frozenset(p for p in member.owned if may_commit(member, p, member.epoch))


# The brokers' default group.consumer.session.timeout.ms, in seconds; brokers don't tell members the
# actual timeout.
_SESSION_TIMEOUT: Final = 45.0
_LONGEST_PAUSE: Final = 1.0


class HeartbeatThread:
    """A thread that sends heartbeats whenever they are due, until stopped or the query ends."""

    def __init__(
        self,
        group_id: str,
        *,
        heartbeat: Callable[[], None],
        due: Callable[[float], bool],
        watch: Callable[[], bool],
        at_end: Callable[[], None],
        each_heartbeat: Callable[[], None],
    ) -> None:
        self._group_id = group_id
        self._heartbeat = heartbeat
        self._due = due
        self._watch = watch
        self._at_end = at_end
        self._each_beat = each_heartbeat
        self.interval = 1.0
        self.refused: SparkEosError | None = None
        self._answered = time.monotonic()
        self._warned = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it is running."""
        self._answered = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"spark-eos-heartbeat-{self._group_id}", daemon=True
            )
            self._thread.start()

    @property
    def stopped(self) -> bool:
        """True if `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Send no further heartbeats, but don't wait for one that is in progress."""
        self._stopped.set()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, unless this is the thread itself."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        sent = time.monotonic()
        while not self._stopped.wait(min(_LONGEST_PAUSE, self.interval)):
            # Heartbeats come first: the JVM, which `_watch` asks, may be slow to answer.
            if self._due(time.monotonic() - sent):
                sent = time.monotonic()
                self._beat()
            if not self._watch():
                self._at_end()
                return

    def _beat(self) -> None:
        try:
            self._heartbeat()
            self._note_answer()
        except Exception as error:  # noqa: BLE001 - without heartbeats the session ends
            self._note_failure(error)
        self._each_beat()

    def _note_answer(self) -> None:
        if self._warned:
            logger.info("heartbeats of group %s are answered again", self._group_id)
        self._answered, self._warned, self.refused = time.monotonic(), False, None

    def _note_failure(self, error: Exception) -> None:
        if is_final(error):
            if self.refused is None:
                logger.error("heartbeat of group %s: %s", self._group_id, error)
            self.refused = cast("SparkEosError", error)
            return
        silence = time.monotonic() - self._answered
        if silence < _SESSION_TIMEOUT or self._warned:
            # Brokers restart and connections break; the session survives that.
            logger.info("heartbeat of group %s: %s", self._group_id, error)
            return
        self._warned = True
        warn(
            logger,
            "EOS56",
            "group %s: no heartbeat was answered for %.0f s, so the brokers drop the member when "
            "the group's session timeout expires (consumer.session.timeout.ms, 45 s by default). "
            "No record is lost or duplicated: the dropped member's transactions are not committed, "
            "and their rows are written again once the brokers answer. Last error: %s",
            self._group_id,
            silence,
            error,
        )


# Seconds allowed for a heartbeat between batches, or for leaving the group.
_BEAT_TIMEOUT: Final = 5.0
_SESSION_LOST: Final = {
    Code.UNKNOWN_MEMBER_ID,
    Code.FENCED_MEMBER_EPOCH,
    Code.GROUP_ID_NOT_FOUND,
}


class GroupMembership:
    """The group's only member: a static member that belongs to this driver."""

    def __init__(
        self,
        connections: Connections,
        group_id: str,
        *,
        group_timeout_ms: int,
        watch: Callable[[], bool],
        at_end: Callable[[], None],
        each_heartbeat: Callable[[], None] = lambda: None,
        renews_only: bool = False,
    ) -> None:
        self._connections = connections
        self._group_id = group_id
        self._group_timeout_ms = group_timeout_ms
        self._renews_only = renews_only
        self._instance_id = RENEWAL_INSTANCE if renews_only else f"{INSTANCE_PREFIX}0"
        self._lock = threading.RLock()
        # None before the member has joined, and after it has left.
        self._member: Member | None = None
        # All member ids that this run has ever used, including those whose join got no answer.
        self._own_ids: set[str] = set()
        self._topics: dict[str, TopicInfo] = {}
        self._fenced: FencedByNewerRunError | None = None
        self._foreign: ForeignMemberError | None = None
        self._session_lost = False
        self._changed = False
        self._heartbeats = HeartbeatThread(
            group_id,
            heartbeat=self._heartbeat,
            due=self._is_beat_due,
            watch=watch,
            at_end=at_end,
            each_heartbeat=each_heartbeat,
        )

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        """The source topics as they were when the member last joined."""
        return self._topics

    @property
    def topic_ids(self) -> dict[str, uuid.UUID]:
        return {name: topic.topic_id for name, topic in self._topics.items()}

    def start(self, topics: Mapping[str, TopicInfo], needed: Collection[TopicPartition]) -> None:
        """Take over the group from earlier runs, and wait for the needed partitions."""
        self._take_over(topics, needed, first=True)
        self._heartbeats.start()

    def take_over_own(
        self, topics: Mapping[str, TopicInfo], needed: Collection[TopicPartition]
    ) -> None:
        """Fence every task that knows this driver's member, by taking the member over."""
        self.check()
        self._take_over(topics, needed, first=False)

    def check(self) -> None:
        """Raise the error that ends this run, if there is one."""
        ended_by = self._fenced or self._foreign or self._heartbeats.refused
        if ended_by is not None:
            raise ended_by
        if self._heartbeats.stopped:
            raise self._has_left()

    def _has_left(self) -> SparkEosError:
        return SparkEosError(f"the run's member has left group {self._group_id!r}")

    def newer_run(self) -> FencedByNewerRunError | None:
        """Ask the brokers whether a newer run has taken over; return the error if so, else None."""
        if self._fenced is None:
            with contextlib.suppress(Exception):  # the caller has its own error to raise
                self._heartbeat()
        return self._fenced

    @property
    def ended(self) -> bool:
        """True if the run no longer has a member, or may not use it."""
        stopped = self._heartbeats.stopped
        return stopped or self._fenced is not None or self._foreign is not None

    @property
    def changed(self) -> bool:
        """True if, since the takeover, the member was dropped or its assignment has changed."""
        return self._session_lost or self._changed

    def assignment(self) -> Assignment:
        """Return the member and the source partitions that it may commit now."""
        with self._lock:
            member = self._member
            if member is None:
                self.check()
                raise self._has_left()
            names = {topic_id: name for name, topic_id in self.topic_ids.items()}
            assigned = frozenset(
                TopicPartition(names[topic_id], index)
                for topic_id, index in committable(member)
                if topic_id in names
            )
            return Assignment(member.identity, assigned)

    # Taking over ------------------------------------------------------------------------------

    def _take_over(
        self,
        topics: Mapping[str, TopicInfo],
        needed: Collection[TopicPartition],
        *,
        first: bool,
    ) -> None:
        with self._lock:
            deadline = group_deadline(self._group_timeout_ms)
            self._topics = dict(topics)

            def attempt() -> None:
                self._release_members(deadline, first=first)
                self._session_lost = False
                self._join(deadline)
                self._await_assignment(needed, deadline)
                if self._session_lost:
                    raise RetriableError("the member was dropped while it joined")
                # A member that joins after this raises the group's epoch, which the next heartbeat
                # tells.
                if others := self._others(deadline):
                    raise RetriableError(f"another member has joined: {others[0]}")
                if set(needed) - self.assignment().partitions:
                    raise RetriableError("source partitions are not assigned yet")
                self._changed = False

            deadline.attempts(f"taking over group {self._group_id!r}", pause=0.05)(attempt)

    def _release_members(self, deadline: Deadline, *, first: bool) -> None:
        """Make the former holder of the instance id leave for now, and all other members for good.

        Others are the member of a renewal, or members of a version that had several.
        """
        for member in own_group(self._connections, self._group_id, deadline).members:
            instance_id = member.instance_id or ""
            is_former = instance_id == self._instance_id
            if is_former and member.epoch == heartbeats.LEAVE_GROUP_STATIC_MEMBER_EPOCH:
                continue
            if member.member_id not in self._own_ids:
                self._yield_to(member, newer=not first and instance_id != RENEWAL_INSTANCE)
            epoch = (
                heartbeats.LEAVE_GROUP_STATIC_MEMBER_EPOCH
                if is_former
                else heartbeats.LEAVE_GROUP_MEMBER_EPOCH
            )
            if is_former:
                self._member = None
            self._leave(MemberIdentity(member.member_id, epoch, instance_id), deadline)

    def _join(self, deadline: Deadline) -> None:
        self._member = None
        member_id = str(uuid.uuid4())
        self._own_ids.add(member_id)
        joining = Member(self._instance_id, member_id, heartbeats.JOIN_EPOCH)
        answer = self._send(joining, deadline)
        if answer.code == Code.UNRELEASED_INSTANCE_ID:
            raise RetriableError(f"member {self._instance_id} is held by another run")
        self._accept(joining, answer)

    def _leave(self, member: MemberIdentity, deadline: Deadline) -> None:
        """Make a member leave, so that brokers refuse later requests with its member id."""
        answer = heartbeats.heartbeat(self._connections, self._group_id, member, deadline)
        if answer.code in (Code.FENCED_INSTANCE_ID, Code.UNKNOWN_MEMBER_ID):
            # Either another run has taken the member over, or this coordinator is cut off and can't
            # commit changes. So look the coordinator up again.
            self._connections.forget_coordinator(CoordinatorType.GROUP, self._group_id)
            raise RetriableError(
                f"member {member.instance_id} changed hands: {code_name(answer.code)}"
            )
        self._check(answer)

    def _await_assignment(self, needed: Collection[TopicPartition], deadline: Deadline) -> None:
        def attempt() -> None:
            missing = sorted(set(needed) - self.assignment().partitions)
            # The broker may answer a join before it has assigned any partitions.
            if missing or not self._acknowledged():
                self._send_heartbeat(deadline)
                missing = sorted(set(needed) - self.assignment().partitions)
            self.check()
            if missing and not self._session_lost and not self._others(deadline):
                raise RetriableError(
                    f"{len(missing)} source partitions are not assigned yet; "
                    f"the first partition is {missing[0]}"
                )

        deadline.attempts(f"joining group {self._group_id!r}", pause=0.01)(attempt)

    def _others(self, deadline: Deadline) -> list[groups.DescribedMember]:
        """Return members of other runs; raise an error if one is foreign, or has taken over."""
        members = own_group(self._connections, self._group_id, deadline).members
        others = [member for member in members if member.member_id not in self._own_ids]
        for other in others:
            self._yield_to(other, newer=other.instance_id == self._instance_id)
        return others

    def _yield_to(self, other: groups.DescribedMember, *, newer: bool) -> None:
        """Raise an error if another run's member is a newer run's, or this is only a renewal."""
        if self._renews_only:
            raise SparkEosError(f"a run has joined in the meantime: {other}")
        if newer:
            raise self._note_fenced(other)

    # Heartbeats -------------------------------------------------------------------------------

    def _is_beat_due(self, waited: float) -> bool:
        if self._fenced is not None:
            return False
        return waited >= self._heartbeats.interval or not self._acknowledged()

    def _acknowledged(self) -> bool:
        """Return True if the member has acknowledged its current assignment to the broker."""
        # The heartbeat thread calls this method without the lock.
        member = self._member
        return member is None or member.owned == member.acknowledged

    def _heartbeat(self) -> None:
        with self._lock:
            if self._heartbeats.stopped:
                return
            deadline = group_deadline(self._group_timeout_ms, _BEAT_TIMEOUT)
            self._send_heartbeat(deadline)
            if not self._changed or self._foreign is not None:
                return
            try:
                own_group(self._connections, self._group_id, deadline)
            except ForeignMemberError as error:
                # Heartbeats continue: the member keeps its partitions until the run ends.
                self._foreign = error
                logger.error("%s", error)  # noqa: TRY400 - the message says it all

    def _send_heartbeat(self, deadline: Deadline) -> None:
        member = self._member
        if member is None:
            return
        answer = self._send(member, deadline)
        if answer.code == Code.FENCED_INSTANCE_ID:
            group = groups.describe_group(self._connections, self._group_id, deadline)
            holders = (m for m in group.members if m.instance_id == member.instance_id)
            self._note_fenced(next(holders, None))
        elif answer.code in _SESSION_LOST:
            self._session_lost = True
            # The member's partitions now belong to another member, or to none.
            self._member = replace(member, assignment_epochs={}, acknowledged=frozenset())
        else:
            self._accept(member, answer)
            self._changed = self._changed or answer.member_epoch != member.epoch

    def _send(self, member: Member, deadline: Deadline) -> heartbeats.HeartbeatAnswer:
        """Send a heartbeat with the member's full state, so that losing an answer does no harm."""
        return heartbeats.heartbeat(
            self._connections,
            self._group_id,
            member.identity,
            deadline,
            subscription=self._topics,
            owned=member.owned,
        )

    def _accept(self, member: Member, answer: heartbeats.HeartbeatAnswer) -> None:
        self._check(answer)
        self._heartbeats.interval = answer.interval or self._heartbeats.interval
        self._member = after_heartbeat(
            replace(member, acknowledged=member.owned), answer.member_epoch, answer.assigned
        )

    def _check(self, answer: heartbeats.HeartbeatAnswer) -> None:
        """Raise the error of a heartbeat's answer, if it has one."""
        if answer.code:
            needed = [acls.read_group(self._group_id), *map(acls.read_topic, self._topics)]
            what = f"group {self._group_id!r}: {answer.message}".rstrip(": ")
            raise self._connections.refusal(what, answer.code, needed)

    def _note_fenced(self, newer: groups.DescribedMember | None) -> FencedByNewerRunError:
        who = f": {newer}" if newer is not None else ", which has since ended"
        self._fenced = FencedByNewerRunError(
            f"group {self._group_id!r} was taken over by a newer run{who}. Only one query may use "
            "a group at a time: this run stops, and commits nothing more"
        )
        logger.error("%s", self._fenced)
        return self._fenced

    # The end ----------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Stop the heartbeats; the member stays until it is taken over or times out."""
        self._heartbeats.stop()
        self._heartbeats.join(timeout=2.0)

    def leave(self) -> None:
        """Stop the heartbeats and make the member leave (epoch -1). May be called again."""
        with self._lock:
            # Check while holding the lock: a second caller, which may be about to exit, must wait
            # until the first caller has finished.
            if self._heartbeats.stopped:
                return
            self._heartbeats.stop()
            deadline = group_deadline(self._group_timeout_ms, _BEAT_TIMEOUT)
            try:
                if self._member is not None:
                    epoch = heartbeats.LEAVE_GROUP_MEMBER_EPOCH
                    leaving = replace(self._member.identity, epoch=epoch)
                    # The answer does not matter.
                    heartbeats.heartbeat(self._connections, self._group_id, leaving, deadline)
            except Exception as error:  # noqa: BLE001 - the run ends anyway
                logger.info("group %s: the member is left to time out: %s", self._group_id, error)
            self._member = None
