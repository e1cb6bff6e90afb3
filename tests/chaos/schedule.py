"""Derives a query's faults from a seed, without side effects, so that a seed reproduces them."""

import enum
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass


class Kind(enum.Enum):
    """A kind of fault. Names are what the command line and the reports call them."""

    WORKER_KILL = "worker-kill"
    WORKER_PAUSE = "worker-pause"
    EXECUTOR_KILL = "executor-kill"
    EXECUTOR_PAUSE = "executor-pause"
    DRIVER_KILL = "driver-kill"
    DRIVER_PAUSE = "driver-pause"
    JVM_KILL = "jvm-kill"
    JVM_PAUSE = "jvm-pause"
    QUERY_KILL = "query-kill"
    ASYNCHRONOUS_KILL = "asynchronous-kill"
    HOLDER_KILL = "holder-kill"
    HOLDER_PAUSE = "holder-pause"
    SESSION_EXPIRY = "session-expiry"
    BROKER_KILL = "broker-kill"
    BROKER_RESTART = "broker-restart"
    BROKER_PAUSE = "broker-pause"
    NETWORK_CUT = "network-cut"
    NETWORK_DELAY = "network-delay"
    NETWORK_NO_ANSWERS = "network-no-answers"
    NETWORK_NO_REQUESTS = "network-no-requests"
    WORKERS_CUT_OFF = "workers-cut-off"
    TASK_SLEEP = "task-sleep"
    USER_EXCEPTION = "user-exception"
    QUICK_RESTART = "quick-restart"
    TWO_DRIVERS = "two-drivers"
    FROZEN_QUERY = "frozen-query"
    CHECKPOINT_DELETED = "checkpoint-deleted"
    CHECKPOINT_ROLLED_BACK = "checkpoint-rolled-back"
    COMMIT_LOG_ENTRY_DELETED = "commit-log-entry-deleted"
    PARTITIONS_ADDED = "partitions-added"
    OFFSETS_DELETED = "offsets-deleted"
    TARGET_REFUSES = "target-refuses"
    LATE_OFFSETS = "late-offsets"
    STAGING_KILL = "staging-kill"
    BEFORE_STAGED_COMMIT_KILL = "before-staged-commit-kill"
    AFTER_STAGED_COMMIT_KILL = "after-staged-commit-kill"
    RELAY_KILL = "relay-kill"
    BEFORE_END_KILL = "before-end-kill"
    BEFORE_COMMIT_KILL = "before-commit-kill"
    BEFORE_STAGED_COMMIT_FREEZE = "before-staged-commit-freeze"
    BEFORE_SWEEP_FREEZE = "before-sweep-freeze"
    BEFORE_RELAY_FREEZE = "before-relay-freeze"
    COPY_REMOVED = "copy-removed"
    SOURCE_BROKER_KILL = "source-broker-kill"
    SOURCE_BROKER_RESTART = "source-broker-restart"
    SOURCE_BROKER_PAUSE = "source-broker-pause"
    SOURCE_NETWORK_CUT = "source-network-cut"
    SOURCE_NETWORK_NO_ANSWERS = "source-network-no-answers"
    REGISTRY_KILL = "registry-kill"
    REGISTRY_PAUSE = "registry-pause"
    LEADER_KILL = "leader-kill"
    LEADER_STOP = "leader-stop"
    LEADER_FREEZE = "leader-freeze"
    LEADER_PARTED = "leader-parted"
    LEADER_MOVE = "leader-move"
    COORDINATOR_KILL = "coordinator-kill"
    COORDINATOR_STOP = "coordinator-stop"
    COORDINATOR_FREEZE = "coordinator-freeze"
    COORDINATOR_PARTED = "coordinator-parted"
    COORDINATOR_MOVE = "coordinator-move"
    GROUP_COORDINATOR_KILL = "group-coordinator-kill"
    GROUP_COORDINATOR_STOP = "group-coordinator-stop"
    GROUP_COORDINATOR_FREEZE = "group-coordinator-freeze"
    GROUP_COORDINATOR_PARTED = "group-coordinator-parted"
    GROUP_COORDINATOR_MOVE = "group-coordinator-move"
    CONTROLLER_KILL = "controller-kill"
    CONTROLLER_STOP = "controller-stop"
    CONTROLLER_FREEZE = "controller-freeze"
    CONTROLLER_PARTED = "controller-parted"
    TWO_NODES_KILL = "two-nodes-kill"
    TWO_NODES_FREEZE = "two-nodes-freeze"
    NODE_UNREACHABLE = "node-unreachable"


class Moment(enum.Enum):
    """Requests or answers between query and broker at which a fault is inflicted."""

    BEFORE_FENCING = "before-fencing"
    FENCED = "fenced"
    BEFORE_PRODUCE = "before-produce"
    PRODUCED = "produced"
    BEFORE_OFFSETS = "before-offsets"
    OFFSETS_SENT = "offsets-sent"
    BEFORE_END = "before-end"
    ENDED = "ended"


# Moments that only a start reaches.
TAKE_OVER = frozenset({Moment.BEFORE_FENCING, Moment.FENCED})
_ITS_END = (Moment.BEFORE_OFFSETS, Moment.OFFSETS_SENT, Moment.BEFORE_END, Moment.ENDED)
CLUSTER_ONLY = frozenset({Kind.EXECUTOR_KILL, Kind.EXECUTOR_PAUSE})
# Faults of the process that has the members instead of the driver: Connect's sink process.
NOT_OF_THE_SINK = frozenset({Kind.HOLDER_KILL, Kind.HOLDER_PAUSE})
# In a trial with one of these, chance decides for each start whether it is asynchronous.
ASYNCHRONOUS = frozenset({Kind.ASYNCHRONOUS_KILL})
_ASYNCHRONOUS_FRONTS = ("sink", "mirrored")
# Kills, or freezes during another run, at places that only a staged batch reaches.
PLACE_KILLS = frozenset(
    {
        Kind.STAGING_KILL,
        Kind.BEFORE_STAGED_COMMIT_KILL,
        Kind.AFTER_STAGED_COMMIT_KILL,
        Kind.RELAY_KILL,
        Kind.BEFORE_END_KILL,
        Kind.BEFORE_COMMIT_KILL,
    }
)
PLACE_FREEZES = frozenset(
    {Kind.BEFORE_STAGED_COMMIT_FREEZE, Kind.BEFORE_SWEEP_FREEZE, Kind.BEFORE_RELAY_FREEZE}
)
STAGED_ONLY = PLACE_KILLS | PLACE_FREEZES | {Kind.COPY_REMOVED}
# Faults of the cluster that a mirrored query reads; the other cluster may fail at the same time.
_SOURCE_BROKER = frozenset(
    {Kind.SOURCE_BROKER_KILL, Kind.SOURCE_BROKER_RESTART, Kind.SOURCE_BROKER_PAUSE}
)
MIRRORED_ONLY = _SOURCE_BROKER | {Kind.SOURCE_NETWORK_CUT, Kind.SOURCE_NETWORK_NO_ANSWERS}
REGISTRY_ONLY = frozenset({Kind.REGISTRY_KILL, Kind.REGISTRY_PAUSE})
# How the query writes: `ExactlyOnceSink` in classic Spark or on Spark Connect, with queries that
# must be staged, or from another cluster.
FRONTS = ("sink", "connect", "staged", "mirrored")
_IN_ONE_PROCESS = ("sink", "staged", "mirrored")
# Names of the loads that must be staged; all other loads are for all other fronts.
STAGED_LOADS = ("shuffled", "spoiled", "windows", "totals", "prices")
LOADS_WITH_REGISTRY = ("schemas", "encoded", "prices")
# The proxy inflicts one of the first set at a time, and the broker one of the second.
NETWORK = frozenset(
    {
        Kind.NETWORK_CUT,
        Kind.NETWORK_DELAY,
        Kind.NETWORK_NO_ANSWERS,
        Kind.NETWORK_NO_REQUESTS,
        Kind.WORKERS_CUT_OFF,
    }
)
BROKER = frozenset({Kind.BROKER_KILL, Kind.BROKER_RESTART, Kind.BROKER_PAUSE})
# Faults of one node, without which the other nodes continue.
_ONE_NODE = frozenset(
    {
        Kind.LEADER_KILL,
        Kind.LEADER_STOP,
        Kind.LEADER_FREEZE,
        Kind.LEADER_PARTED,
        Kind.LEADER_MOVE,
        Kind.COORDINATOR_KILL,
        Kind.COORDINATOR_STOP,
        Kind.COORDINATOR_FREEZE,
        Kind.COORDINATOR_PARTED,
        Kind.COORDINATOR_MOVE,
        Kind.GROUP_COORDINATOR_KILL,
        Kind.GROUP_COORDINATOR_STOP,
        Kind.GROUP_COORDINATOR_FREEZE,
        Kind.GROUP_COORDINATOR_PARTED,
        Kind.GROUP_COORDINATOR_MOVE,
        Kind.CONTROLLER_KILL,
        Kind.CONTROLLER_STOP,
        Kind.CONTROLLER_FREEZE,
        Kind.CONTROLLER_PARTED,
    }
)
# Faults that leave no majority, or a leader that clients can't reach.
NO_MAJORITY = frozenset({Kind.TWO_NODES_KILL, Kind.TWO_NODES_FREEZE, Kind.NODE_UNREACHABLE})
NODES = _ONE_NODE | NO_MAJORITY
# These start the query again, or another query, so they can't be half of a pair.
ALONE = frozenset(
    {
        Kind.TWO_DRIVERS,
        Kind.FROZEN_QUERY,
        Kind.CHECKPOINT_DELETED,
        Kind.CHECKPOINT_ROLLED_BACK,
        Kind.COMMIT_LOG_ENTRY_DELETED,
        Kind.OFFSETS_DELETED,
        *ASYNCHRONOUS,
        *STAGED_ONLY,
    }
)
# The driver ends, and its operator must start it again.
FATAL = frozenset({Kind.DRIVER_KILL, Kind.JVM_KILL, Kind.QUERY_KILL, *ASYNCHRONOUS, *PLACE_KILLS})
# All writers are dead afterwards, so their open transactions must not outlive the recovery.
DEADLY = (FATAL | ALONE) - {Kind.TWO_DRIVERS, Kind.FROZEN_QUERY, *PLACE_FREEZES}
# Faults that are always inflicted at a moment around a transaction's end.
_AROUND_ITS_END = ASYNCHRONOUS | {Kind.RELAY_KILL}
# Faults that are inflicted at a moment or at any time.
_AT_MOMENTS = frozenset(
    {
        Kind.WORKER_KILL,
        Kind.EXECUTOR_KILL,
        Kind.DRIVER_KILL,
        Kind.JVM_KILL,
        Kind.QUERY_KILL,
        Kind.BROKER_KILL,
        Kind.BROKER_RESTART,
        Kind.NETWORK_CUT,
        *NODES,
    }
)
# Faults during which nothing can be committed.
DOWNTIME = BROKER | _SOURCE_BROKER | NO_MAJORITY | {Kind.SESSION_EXPIRY}


@dataclass(frozen=True)
class Fault:
    kind: Kind  # the kind of fault
    seconds: float  # duration, if it has one; otherwise, extent
    choice: float  # from 0 to below 1; chooses the worker, number of batches, and so on
    at: Moment | None = None  # its moment; None for at once
    sender: int | None = None  # the process that has reached this moment
    transactional_id: str | None = None  # the transactional id that has reached it


@dataclass(frozen=True)
class Step:
    """Faults inflicted together, some time after the query recovered from the previous step."""

    pause: float  # seconds without faults before it
    faults: tuple[Fault, ...]  # one or two faults
    between: float  # seconds between two faults


@dataclass(frozen=True)
class Schedule:
    """Everything that a seed determines."""

    seed: int
    load: str
    front: str  # how the query writes; one of `FRONTS`
    cluster: bool  # whether executors have their own processes, outside the driver's JVM
    speculation: bool  # whether Spark starts second copies of slow tasks
    steps: tuple[Step, ...]  # the faults
    nodes: int = 1  # number of nodes of each Kafka cluster
    yarn: bool = False  # whether executors run on YARN

    @property
    def faults(self) -> list[Fault]:
        """All faults, in order."""
        return [fault for step in self.steps for fault in step.faults]

    def asynchronous(self, start: int) -> bool:
        """True if the n-th start uses ``asynchronous_progress``."""
        if not any(fault.kind in ASYNCHRONOUS for fault in self.faults):
            return False
        return random.Random(f"{self.seed}-{start}").random() < 0.6


def impossible(front: str, load: str, *, cluster: bool, nodes: int) -> frozenset[Kind]:
    """Faults that are impossible for a front and a load."""
    found = NOT_OF_THE_SINK if front in _IN_ONE_PROCESS else frozenset()
    found |= frozenset() if cluster else CLUSTER_ONLY
    found |= frozenset() if nodes > 1 else NODES
    # Records that the target refuses become dead letters, which only broken records may be here.
    found |= {Kind.TARGET_REFUSES} if load in LOADS_WITH_REGISTRY else REGISTRY_ONLY
    found |= frozenset() if front == "mirrored" else MIRRORED_ONLY
    found |= frozenset() if front in _ASYNCHRONOUS_FRONTS else ASYNCHRONOUS
    return found | (frozenset() if front == "staged" else STAGED_ONLY)


def _fits(load: str, front: str) -> bool:
    return (load in STAGED_LOADS) == (front == "staged")


def moments_of(kind: Kind) -> frozenset[Moment]:
    """The moments at which a fault may be inflicted; empty if it has no moment."""
    if kind in _AROUND_ITS_END:
        return frozenset(_ITS_END)
    if kind not in _AT_MOMENTS:
        return frozenset()
    # At a start, the driver fences first. A broker killed just before the markers hits KAFKA-20734.
    workers = TAKE_OVER if kind in {Kind.WORKER_KILL, Kind.EXECUTOR_KILL} else frozenset()
    return frozenset(Moment) - workers - ({Moment.ENDED} if kind is Kind.BROKER_KILL else set())


def _go_together(kinds: Sequence[Kind], at: Collection[Moment]) -> bool:
    pair = set(kinds)
    if len(pair) < len(kinds) or ALONE & pair:
        return False
    # A fault that starts the query again can't be half of a pair.
    if at and not all(moments_of(kind) & set(at) - TAKE_OVER for kind in pair):
        return False
    groups = (NETWORK, BROKER | NODES, MIRRORED_ONLY, REGISTRY_ONLY)
    return not any(pair <= group for group in groups)


def schedule(
    seed: int,
    *,
    steps: int,
    loads: Sequence[str],
    kinds: Collection[Kind] = (),
    fronts: Sequence[str] = FRONTS,
    cluster: bool | None = None,
    at: Collection[Moment] = (),
    nodes: int = 1,
    yarn: bool = False,
) -> Schedule:
    """Derive a schedule from a seed; with several nodes, each step has one node fault."""
    chosen = random.Random(seed)
    on_cluster = chosen.random() < 0.4 if cluster is None else cluster
    front = chosen.choice([f for f in fronts if any(_fits(load, f) for load in loads)])
    on_cluster = on_cluster and front in _IN_ONE_PROCESS
    load = chosen.choice([load for load in loads if _fits(load, front)])
    without = impossible(front, load, cluster=on_cluster, nodes=nodes)
    pool = [k for k in Kind if (not kinds or k in kinds) and k not in without]
    pool = [k for k in pool if not at or moments_of(k) & set(at)]
    if not pool:
        raise ValueError(
            f"none of these faults can be done to {front} with {load}, cluster={on_cluster}, "
            f"at={[moment.value for moment in at]}"
        )
    bag = _Bag(pool, chosen)
    of_nodes = [kind for kind in pool if kind in NODES]
    first = _Bag(of_nodes, chosen) if of_nodes else bag
    if of_nodes:
        bag = _Bag([k for k in pool if _go_together([k, of_nodes[0]], at)], chosen)

    when = random.Random(f"{seed}-moments")

    def moment(kind: Kind, *, alone: bool) -> Moment | None:
        possible = moments_of(kind) - (frozenset() if alone else TAKE_OVER)
        own = [one for one in at or Moment if one in possible]
        chance = 1.0 if at or kind in _AROUND_ITS_END else 0.5
        return when.choice(own) if own and when.random() < chance else None

    def fault(kind: Kind, *, alone: bool) -> Fault:
        seconds, choice = round(chosen.uniform(0.5, 3.0), 2), chosen.randrange(1_000) / 1_000
        return Fault(kind, seconds, choice, moment(kind, alone=alone))

    made = []
    for _ in range(steps):
        kinds_of_step = [first.draw()]
        if chosen.random() < 0.6 and bag.kinds:
            kinds_of_step.append(bag.draw())
        if len(kinds_of_step) > 1 and not _go_together(kinds_of_step, at):
            bag.put_back(kinds_of_step.pop())
        made.append(
            Step(
                round(chosen.uniform(0.0, 1.5), 2),
                tuple(fault(kind, alone=len(kinds_of_step) == 1) for kind in kinds_of_step),
                round(chosen.choice((0.0, chosen.uniform(0.0, 1.0))), 2),
            )
        )
    return Schedule(
        seed,
        load,
        front,
        on_cluster,
        on_cluster and chosen.random() < 0.5,
        tuple(made),
        nodes,
        yarn and on_cluster,
    )


class _Bag:
    """Draws every kind once before any kind twice."""

    def __init__(self, kinds: list[Kind], chosen: random.Random) -> None:
        self.kinds = kinds
        self._chosen = chosen
        self._left: list[Kind] = []

    def draw(self) -> Kind:
        if not self._left:
            self._left.extend(self.kinds)
            self._chosen.shuffle(self._left)
        return self._left.pop()

    def put_back(self, kind: Kind) -> None:
        self._left.append(kind)
