"""Deliberate breakages of spark-eos: patches in ``mutations/`` that faults or tests must detect.

`chaos.proving` runs each of them and defines when a breakage counts as detected.

A breakage is applied to a copy of the package, which the query and its workers then run.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import spark_eos
from chaos.schedule import Kind, Moment
from chaos.stage import TRANSACTION_TIMEOUT_MS

_PATCHES = Path(__file__).parent / "mutations"


@dataclass(frozen=True)
class Mutation:
    kinds: tuple[Kind, ...]  # faults that reveal the breakage
    steps: int = 6  # number of steps with these faults
    load: str = "relay"  # a load that reveals it
    front: str = "sink"  # how the query writes, which decides the delivery
    at: tuple[Moment, ...] = ()  # moments of the faults; empty for any time
    # The query's timeout; long if an abort by the brokers would hide the breakage.
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS


def _staged(kind: Kind, load: str = "shuffled", steps: int = 1) -> Mutation:
    return Mutation((kind,), steps=steps, load=load, front="staged")


MUTATIONS = {
    "no-takeover-at-start": Mutation((Kind.FROZEN_QUERY, Kind.TWO_DRIVERS), steps=4),
    "rejoin-with-the-same-member-id": Mutation((Kind.FROZEN_QUERY, Kind.TWO_DRIVERS), steps=4),
    "v6-answer-ignored": Mutation((Kind.SESSION_EXPIRY, Kind.FROZEN_QUERY), steps=4),
    "v6-sent-before-flush": Mutation((Kind.WORKER_PAUSE,), steps=1),
    "offsets-read-before-fencing": Mutation((Kind.TWO_DRIVERS,), steps=3),
    # Only a task that has committed some of its rows reveals it.
    "retries-not-deferred": Mutation(
        (Kind.USER_EXCEPTION, Kind.WORKER_KILL), steps=12, load="skewed"
    ),
    "producer-kept-after-an-unclean-end": Mutation((Kind.LATE_OFFSETS,)),
    "end-committed-before-the-rows": Mutation((Kind.DRIVER_KILL,), steps=2),
    # The kill comes before the transaction has offsets: otherwise, reading offsets would wait until
    # the brokers abort it. The second start is as on another host, so that no worker takes the open
    # transaction's id.
    "lingering-transactions-left": Mutation(
        (Kind.QUERY_KILL,),
        steps=1,
        at=(Moment.BEFORE_PRODUCE, Moment.PRODUCED),
        transaction_timeout_ms=120_000,
    ),
    # A kill during staging might instead hit a restart that runs the frame only for its state.
    "staged-commit-before-the-files": _staged(Kind.BEFORE_STAGED_COMMIT_KILL),
    # One driver in three wakes up in its successor's current batch, which hides it.
    "sweep-leaves-only-its-own": _staged(Kind.BEFORE_SWEEP_FREEZE, steps=4),
    "staged-anew-when-repeated": _staged(Kind.RELAY_KILL),
    "positions-not-in-the-transaction": _staged(Kind.RELAY_KILL),
    "rows-read-not-counted": _staged(Kind.COPY_REMOVED),
    "dead-letters-outside-the-transaction": Mutation(
        (Kind.WORKER_KILL, Kind.QUERY_KILL), steps=3, load="poison"
    ),
    "dead-letters-swallowed": Mutation((Kind.WORKER_KILL,), steps=1, load="poison"),
}

FOUND_BY_TESTS = {
    # librdkafka refuses to commit, and the next attempt knows the topic's limit.
    "delivery-errors-ignored": (
        "tests/integration/worker/test_topic_rules.py::test_a_lowered_limit_repeats_the_attempt"
    ),
    # Freed memory is rarely reused before its records are sent.
    "values-not-kept": (
        "tests/integration/worker/test_librdkafka.py::test_values_are_kept_until_they_are_sent"
    ),
    # Session expiry rarely aborts a transaction that has dead letters.
    "dead-letters-of-aborted-transactions-counted": (
        "tests/integration/exactly_once/test_group_changes.py"
        "::test_dead_letters_of_an_aborted_transaction_are_counted_once"
    ),
    # The trial gets stuck: every further start is refused.
    "staged-commit-as-nobody": (
        "tests/integration/exactly_once/test_staging.py"
        "::test_a_stale_run_that_wakes_up_while_relaying_writes_no_row"
    ),
    # The trial gets stuck: nothing more is committed.
    "pair-taken-twice": (
        "tests/integration/exactly_once/test_mirroring.py"
        "::test_partitions_are_added_and_so_are_progress_partitions"
    ),
    # The attempt that a trial kills has already kept its state.
    "state-not-run-when-repeated": (
        "tests/integration/exactly_once/test_staging.py"
        "::test_a_repeated_batch_uses_its_copy_and_runs_for_its_state"
    ),
}
"""Breakages that no trial detects, each with a test that does."""


def mutated(name: str, directory: Path) -> Path:
    project = directory / "mutated"
    original = Path(spark_eos.__file__).parent
    shutil.copytree(
        original, project / "spark_eos", ignore=shutil.ignore_patterns("__pycache__", "testing")
    )
    (project / "spark_eos" / "testing").symlink_to(original / "testing")
    applied = subprocess.run(
        [
            shutil.which("git") or "git",
            "apply",
            "--unsafe-paths",
            f"--directory={project}",
            _PATCHES / f"{name}.patch",
        ],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if applied.returncode:
        raise ValueError(f"mutations/{name}.patch: {applied.stderr}")
    return project
