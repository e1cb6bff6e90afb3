"""The driver's side of the consumer group: static members, takeover, heartbeats (KIP-848).

Taking a member over is leave(-2) with its old member id, then join with a fresh member id and
the same instance id: no rebalance, and whatever the old id still sends is refused.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, cast

from spark_eos import acls
from spark_eos.client.error_codes import Code, code_name, is_final, refusal
from spark_eos.driver.assigned_partitions import Member, after_heartbeat, owners
from spark_eos.errors import FencedByNewerRunError, ForeignMemberError, SparkEosError
from spark_eos.kafka import groups
from spark_eos.kafka.cluster import TopicInfo
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline, RetriableError
from spark_eos.kafka.group_members import INSTANCE_PREFIX, RENEWAL_INSTANCE, own_group
from spark_eos.kafka.transactions import MemberIdentity

logger = logging.getLogger(__name__)

# Seconds: the brokers' default group.consumer.session.timeout.ms, which nobody tells a member.
_SESSION: Final = 45.0
_SESSION_LOST = {Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH, Code.GROUP_ID_NOT_FOUND}


class GroupMembership:
    """The group's members, all of which belong to this driver.

    Args:
        wire: the connections.
        group_id: the consumer group.
        max_members: at most so many members, whatever the number of source partitions.
        group_timeout_ms: milliseconds that joining, and each call to the group, may take.
        watch: called about once a second between heartbeats, to tell whether to go on.
        at_end: called when ``watch`` says no; expected to call `leave`.
        each_beat: called about once a second on the heartbeats' thread; must not raise.
        renews_only: whether to give up where somebody else is a member, not to take over.
    """

    def __init__(
        self,
        wire: Wire,
        group_id: str,
        *,
        max_members: int,
        group_timeout_ms: int,
        watch: Callable[[], bool],
        at_end: Callable[[], None],
        each_beat: Callable[[], None] = lambda: None,
        renews_only: bool = False,
    ) -> None:
        self._wire = wire
        self._group_id = group_id
        self._max_members = max_members
        self._timeout = group_timeout_ms / 1000
        self._watch = watch
        self._each_beat = each_beat
        self._renews_only = renews_only
        self._at_end = at_end
        self._lock = threading.RLock()
        self._members: dict[str, Member] = {}
        # Of all members ever joined, since the answer to a join may be lost.
        self._own_ids: set[str] = set()
        self._topics: dict[str, TopicInfo] = {}
        self._fenced: FencedByNewerRunError | None = None
        self._foreign: ForeignMemberError | None = None
        self._refused: SparkEosError | None = None
        self._beaten = time.monotonic()
        self._told_of_silence = False
        self._session_lost = False
        self._changed = False
        self._interval = 1.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout, "group_timeout_ms")

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        """The source topics as they were when the members last joined."""
        return self._topics

    @property
    def topic_ids(self) -> dict[str, uuid.UUID]:
        """The source topics' ids."""
        return {name: topic.topic_id for name, topic in self._topics.items()}

    def any_member(self) -> tuple[str, int]:
        """Member id and epoch of a current member, for calls that any member may make."""
        with self._lock:
            member = next(iter(self._members.values()))
            return member.member_id, member.epoch

    def start(self, topics: Mapping[str, TopicInfo], needed: Collection[tuple[str, int]]) -> None:
        """Takes the group over from whoever ran it, and waits for the partitions needed.

        Args:
            topics: the source topics.
            needed: (topic, partition) pairs that must be assigned when this returns.

        Raises:
            ForeignMemberError: somebody else's consumer is a live member of the group.
            DeadlineExceededError: the group did not become stable in time.
        """
        self._take_over(topics, needed, first=True)
        self._beaten = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._beat_until_stopped,
                name=f"spark-eos-heartbeat-{self._group_id}",
                daemon=True,
            )
            self._thread.start()

    def take_over_own(
        self, topics: Mapping[str, TopicInfo], needed: Collection[tuple[str, int]]
    ) -> None:
        """Fences every task that knows this driver's members so far, by taking them over.

        Raises:
            FencedByNewerRunError: another run holds the members; it is left alone.
        """
        self.check()
        self._take_over(topics, needed, first=False)

    def check(self) -> None:
        """Raises what ends this run, if anything does.

        Raises:
            FencedByNewerRunError: another run has taken the group over.
            ForeignMemberError: somebody else's consumer has joined the group.
            AuthorizationError, AuthenticationError, KafkaResponseError: the last heartbeat was
                refused for good.
            SparkEosError: the members have left, so this run is over.
        """
        ended_by = self._fenced or self._foreign or self._refused
        if ended_by is not None:
            raise ended_by
        if self._stopped.is_set():
            raise SparkEosError(f"the run's members have left group {self._group_id!r}")

    @property
    def ended(self) -> bool:
        """Whether the run has no members any more, or may not use them."""
        return self._stopped.is_set() or self._fenced is not None or self._foreign is not None

    @property
    def session_lost(self) -> bool:
        """Whether the broker has dropped a member, for want of heartbeats say."""
        return self._session_lost

    @property
    def changed(self) -> bool:
        """Whether the group is not as it was taken over: a member dropped, a new assignment."""
        return self._session_lost or self._changed

    def identities(self) -> dict[tuple[str, int], MemberIdentity]:
        """The member that may commit each source partition now, by the assigned-partition rule."""
        with self._lock:
            names = {topic_id: name for name, topic_id in self.topic_ids.items()}
            return {
                (names[topic_id], index): MemberIdentity(
                    member.member_id, member.epoch, member.instance_id
                )
                for (topic_id, index), member in owners(self._members.values()).items()
                if topic_id in names
            }

    # Taking over ------------------------------------------------------------------------------

    def _take_over(
        self,
        topics: Mapping[str, TopicInfo],
        needed: Collection[tuple[str, int]],
        *,
        first: bool,
    ) -> None:
        with self._lock:
            deadline = self._deadline()
            self._topics = dict(topics)
            total = sum(topic.partitions for topic in topics.values())
            wanted = [f"{INSTANCE_PREFIX}{n}" for n in range(min(self._max_members, total))]
            if self._renews_only:
                wanted = [RENEWAL_INSTANCE]

            def attempt() -> None:
                self._release_members(wanted, deadline, first=first)
                self._session_lost = False
                # Those released are joined anew below; others are none of the group's any more.
                self._members.clear()
                for instance_id in wanted:
                    self._join(instance_id, deadline)
                self._await_assignment(needed, deadline)
                if self._session_lost:
                    raise RetriableError("a member was dropped while it joined")
                self._changed = False

            deadline.attempts(f"taking over group {self._group_id!r}", pause=0.05)(attempt)

    def _release_members(self, wanted: list[str], deadline: Deadline, *, first: bool) -> None:
        for found in own_group(self._wire, self._group_id, deadline).members:
            instance_id = found.instance_id or ""
            if found.epoch == groups.LEAVE_GROUP_STATIC_MEMBER_EPOCH and instance_id in wanted:
                continue
            if found.member_id not in self._own_ids:
                if self._renews_only:
                    raise SparkEosError(f"a run has joined meanwhile: {found}")
                if not first and instance_id != RENEWAL_INSTANCE:
                    raise self._fence(found)
            epoch = (
                groups.LEAVE_GROUP_STATIC_MEMBER_EPOCH
                if instance_id in wanted
                else groups.LEAVE_GROUP_MEMBER_EPOCH
            )
            self._members.pop(instance_id, None)
            left = groups.heartbeat(
                self._wire, self._group_id, found.member_id, epoch, instance_id, deadline
            )
            if left.code in (Code.FENCED_INSTANCE_ID, Code.UNKNOWN_MEMBER_ID):
                raise RetriableError(f"member {instance_id} changed hands: {code_name(left.code)}")
            self._refuse(left)

    def _join(self, instance_id: str, deadline: Deadline) -> None:
        member_id = str(uuid.uuid4())
        self._own_ids.add(member_id)
        answer = groups.heartbeat(
            self._wire,
            self._group_id,
            member_id,
            groups.JOIN_EPOCH,
            instance_id,
            deadline,
            subscription=self._topics,
            owned=frozenset(),
        )
        if answer.code == Code.UNRELEASED_INSTANCE_ID:
            raise RetriableError(f"member {instance_id} is held by another run")
        self._refuse(answer)
        self._interval = answer.interval or self._interval
        self._members[instance_id] = after_heartbeat(
            Member(instance_id, member_id, answer.member_epoch),
            answer.member_epoch,
            answer.assigned,
        )

    def _refuse(self, answer: groups.HeartbeatAnswer) -> None:
        if answer.code:
            needed = [acls.read_group(self._group_id), *map(acls.read_topic, self._topics)]
            what = f"group {self._group_id!r}: {answer.message}".rstrip(": ")
            raise refusal(what, answer.code, needed, self._wire.grantee)

    def _await_assignment(self, needed: Collection[tuple[str, int]], deadline: Deadline) -> None:
        def attempt() -> None:
            missing = sorted(set(needed) - set(self.identities()))
            # The answer to a join may come before the broker has assigned anything.
            if missing or not self._settled():
                self._beat_all(deadline)
                missing = sorted(set(needed) - set(self.identities()))
            self.check()
            if self._session_lost:
                return
            if missing:
                topic, partition = missing[0]
                raise RetriableError(
                    f"{len(missing)} source partitions are not assigned yet, "
                    f"the first is {topic}-{partition}"
                )
            # The first to join is given everything, and would lose most of it in the first batch.
            if not own_group(self._wire, self._group_id, deadline).stable:
                self._beat_all(deadline)
                raise RetriableError("the group is not stable yet")

        deadline.attempts(f"joining group {self._group_id!r}", pause=0.01)(attempt)

    # Heartbeats -------------------------------------------------------------------------------

    def _beat_all(self, deadline: Deadline) -> None:
        members = list(self._members.values())
        # Always in full: the answer then tells the assignment, even if an earlier one was lost, and
        # every change is confirmed by the list of what is owned now.
        beats = [groups.Beat(m.member_id, m.epoch, m.instance_id, m.owned) for m in members]
        answers = groups.heartbeats(self._wire, self._group_id, beats, self._topics, deadline)
        for member, answer in zip(members, answers, strict=True):
            self._take_in(member, answer, deadline)

    def _take_in(self, member: Member, answer: groups.HeartbeatAnswer, deadline: Deadline) -> None:
        if answer.code == Code.FENCED_INSTANCE_ID:
            self._fence(self._newer_member(member, deadline))
        elif answer.code in _SESSION_LOST:
            self._session_lost = True
            # Its partitions are another member's by now, or nobody's.
            self._members[member.instance_id] = replace(
                member, assignment_epochs={}, acknowledged=frozenset()
            )
        else:
            self._refuse(answer)
            self._interval = answer.interval or self._interval
            self._changed = self._changed or answer.member_epoch != member.epoch
            self._members[member.instance_id] = after_heartbeat(
                replace(member, acknowledged=member.owned), answer.member_epoch, answer.assigned
            )

    def _settled(self) -> bool:
        """Whether the broker knows that each member owns just what it is assigned."""
        return all(member.owned == member.acknowledged for member in self._members.values())

    def _newer_member(self, member: Member, deadline: Deadline) -> groups.DescribedMember | None:
        group = groups.describe_group(self._wire, self._group_id, deadline)
        return next((m for m in group.members if m.instance_id == member.instance_id), None)

    def _fence(self, newer: groups.DescribedMember | None) -> FencedByNewerRunError:
        who = f": {newer}" if newer is not None else ", which has ended since"
        self._fenced = FencedByNewerRunError(
            f"group {self._group_id!r} was taken over by a newer run{who}. Only one query may use "
            "a group at a time; this one stops and has left nothing half written"
        )
        logger.error("%s", self._fenced)
        return self._fenced

    def _beat_until_stopped(self) -> None:
        waited = 0.0
        while not self._stopped.wait(min(1.0, self._interval)):
            waited += min(1.0, self._interval)
            if not self._watch():
                self._at_end()
                return
            if self._fenced is not None or (waited < self._interval and self._settled()):
                continue
            waited = 0.0
            try:
                with self._lock:
                    if not self._stopped.is_set():
                        deadline = Deadline(min(5.0, self._timeout), "group_timeout_ms")
                        self._beat_all(deadline)
                        if self._changed and self._foreign is None:
                            own_group(self._wire, self._group_id, deadline)
                self._note_beat()
            except ForeignMemberError as error:
                # The partitions stay ours, as far as they are, until the run ends by it.
                self._foreign = error
                logger.error("%s", error)  # noqa: TRY400 - the text says it all
            except Exception as error:  # noqa: BLE001 - beats must go on, or the session ends
                self._note_failure(error)
            self._each_beat()

    def _note_beat(self) -> None:
        if self._told_of_silence:
            logger.info("heartbeats of group %s are answered again", self._group_id)
        self._beaten, self._told_of_silence, self._refused = time.monotonic(), False, None

    def _note_failure(self, error: Exception) -> None:
        if is_final(error):
            if self._refused is None:
                logger.error("heartbeat of group %s: %s", self._group_id, error)
            self._refused = cast("SparkEosError", error)
            return
        silence = time.monotonic() - self._beaten
        if silence < _SESSION or self._told_of_silence:
            # Brokers restart, and connections break; the session outlives that.
            logger.info("heartbeat of group %s: %s", self._group_id, error)
            return
        self._told_of_silence = True
        logger.warning(
            "group %s: no heartbeat was answered for %.0f s, so the brokers drop the members when "
            "the group's session timeout is over (consumer.session.timeout.ms, 45 s by default). "
            "No record is lost or doubled by that: what is being written meanwhile is refused, and "
            "written once the brokers answer again. Last: %s",
            self._group_id,
            silence,
            error,
        )

    # The end ----------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Stops the heartbeats; the members stay until they are taken over or time out."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)

    def leave(self) -> None:
        """Stops the heartbeats and lets every member leave the group (-1). May be called again."""
        with self._lock:
            # Asked within the lock: who calls again, perhaps to exit then, waits for the first.
            if self._stopped.is_set():
                return
            self._stopped.set()
            deadline = Deadline(min(5.0, self._timeout), "group_timeout_ms")
            try:
                for member in self._members.values():
                    groups.heartbeat(
                        self._wire,
                        self._group_id,
                        member.member_id,
                        groups.LEAVE_GROUP_MEMBER_EPOCH,
                        member.instance_id,
                        deadline,
                    )
            except SparkEosError as error:
                logger.info("group %s: members will time out: %s", self._group_id, error)
            self._members.clear()
