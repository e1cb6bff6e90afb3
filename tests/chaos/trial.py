"""One seed's trial: faults one step after another, recovery after each, then the verdict."""

import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from chaos.faults import inflict_together
from chaos.loads import EXPECT, POSITION
from chaos.schedule import DEADLY, FATAL, Schedule, Step
from chaos.stage import TRANSACTION_TIMEOUT_MS, Stage, TrialError, wait_for
from spark_eos.verify import Kind as FindingKind
from spark_eos.verify import Verdict, verify

_PATIENCE = 150.0
_DRAIN_PATIENCE = 240.0
_DRAINS = 3
_REFUSED = "Message size too large"
_MARKERS_SKIPPED = "these partitions are likely deleted already and hence can be skipped"
_ROW_TO_BLAME = re.compile(r"source in-\S+-\d+ offset \d+, for topic 'out-")

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Recovery:
    """From the end of a step's faults to the next committed transaction.

    Attributes:
        kinds: of the faults, joined by "+" where there were two.
        seconds: how long it took.
        query_seconds: where a driver had to be started again, how much of it came after the
            start of its query; the rest is Spark's own start.
    """

    kinds: str
    seconds: float
    query_seconds: float | None


@dataclass
class Outcome:
    """What became of a trial.

    Attributes:
        seed: the schedule's seed.
        load: the load's name.
        faults: number of faults by kind.
        recoveries: of each step.
        records: input records.
        transactions: as far as batches were reported.
        starts: of the query's processes.
        problem: why the trial failed; None if it did not.
        findings: the verifier's counts.
        seconds: how long it took.
    """

    seed: int
    load: str
    faults: dict[str, int] = field(default_factory=dict)
    recoveries: list[Recovery] = field(default_factory=list)
    records: int = 0
    transactions: int = 0
    starts: int = 0
    problem: str | None = None
    findings: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def run_trial(
    plan: Schedule,
    directory: Path,
    tell: Tell,
    project: Path | None = None,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> Outcome:
    """Runs a schedule to its end and judges the output.

    Args:
        plan: the schedule.
        directory: for data and logs; they are left there.
        tell: called with what happens.
        project: directory of the ``spark_eos`` under test, if not the one installed.
        transaction_timeout_ms: the query's.
    """
    outcome = Outcome(plan.seed, plan.load)
    began = time.monotonic()
    with Stage(plan, directory, project, transaction_timeout_ms) as stage:
        try:
            stage.start()
            _recovered(stage, time.monotonic(), starts=0)
            for step in plan.steps:
                _step(stage, step, outcome, tell)
            tell("reading the rest")
            _drain(stage)
            outcome.records = stage.source.produced
            tell(f"verifying {outcome.records:,} records")
            outcome.findings, outcome.problem = judge(stage)
            outcome.problem = outcome.problem or _row_not_named(directory)
        except TrialError as error:
            outcome.problem = str(error)
        except Exception:  # noqa: BLE001 - a seed that breaks the harness must be told like others
            outcome.problem = traceback.format_exc()
        if outcome.problem and _MARKERS_SKIPPED in stage.broker.log():
            outcome.problem += " (the broker has left transactions without markers: KAFKA-20734)"
        outcome.starts = stage.starts
        outcome.transactions = _transactions(directory)
    outcome.seconds = time.monotonic() - began
    return outcome


def _step(stage: Stage, step: Step, outcome: Outcome, tell: Tell) -> None:
    time.sleep(step.pause)
    kinds = "+".join(fault.kind.value for fault in step.faults)
    starts = stage.starts
    over, missed = inflict_together(stage, step.faults, step.between)
    over_by_the_clock = time.time()
    done = {fault.kind for fault in step.faults if fault not in missed}
    for kind in done:
        outcome.faults[kind.value] = outcome.faults.get(kind.value, 0) + 1
    if FATAL & done:
        _await_end(stage)
    moved = _recovered(stage, over, starts)
    after = moved - max(over, stage.queries()[-1]) if stage.starts > starts else None
    outcome.recoveries.append(Recovery(kinds, moved - over, after))
    if DEADLY & done:
        left = stage.abandoned(over_by_the_clock)
        if left:
            raise TrialError(f"{kinds}: transactions are open after recovery: {', '.join(left)}")
    tell(f"{kinds}: recovered in {moved - over:.1f} s")


def _await_end(stage: Stage) -> None:
    """Until the driver is gone: what its tasks may still commit is no recovery."""
    wait_for(
        lambda: stage.exit_status() is not None,
        time.monotonic() + _PATIENCE,
        f"the driver goes on although it, or its JVM, was killed: {stage.log}",
    )


def _recovered(stage: Stage, since: float, starts: int) -> float:
    """When offsets moved again, with a query alive that may go on moving them.

    Args:
        stage: the stage.
        since: the end of the faults.
        starts: drivers started before the faults; with a new one only its query counts.
    """
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        time.sleep(0.02)
        stage.keep_going()
        queries = stage.queries() if stage.starts > starts else [since]
        if not queries:
            continue
        moved = stage.watcher.next_commit(max(since, queries[-1]))
        if moved is not None and stage.exit_status() is None:
            return moved
    raise TrialError(f"nothing was committed for {_PATIENCE:g} s; see {stage.log}")


def _drain(stage: Stage) -> None:
    stage.watcher.stop_feeding()
    for _ in range(_DRAINS):
        stage.kill_query()
        stage.start(drain=True)
        end = time.monotonic() + _DRAIN_PATIENCE
        while stage.exit_status() is None and time.monotonic() < end:
            time.sleep(0.1)
        if stage.exit_status() == 0:
            return
    raise TrialError(f"without any fault the query does not get to the end; see {stage.log}")


def _transactions(directory: Path) -> int:
    total = 0
    for log in directory.glob("query-*.log"):
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("REPORT "):
                total += int(line.partition('"transactions": ')[2].partition(",")[0])
    return total


def _row_not_named(directory: Path) -> str | None:
    """What is wrong if a query ended over a record and did not say which row it came from."""
    for log in directory.glob("query-*.log"):
        text = log.read_text(errors="replace")
        if _REFUSED in text and not _ROW_TO_BLAME.search(text):
            return f"a query ended without naming the row to blame: {log}"
    return None


def judge(stage: Stage) -> tuple[dict[str, int], str | None]:
    """The verifier's counts, and what is wrong, if anything is."""
    found = verify(
        kafka={"bootstrap.servers": stage.servers},
        inputs=stage.sources,
        outputs=stage.targets,
        position_header=POSITION,
        expect_header=EXPECT,
        group_id=stage.name,
        prefix=f"spark-eos/{stage.name}/",
        complete=True,
    )
    counts = {kind.value: found.count(kind) for kind in FindingKind}
    counts["records_in"], counts["records_out"] = found.records_in, found.records_out
    counts["order_violations"] = len(stage.order.violations)
    problems = stage.order.violations[:1]
    if found.verdict is Verdict.SOUND and found.records_in == stage.source.produced:
        return counts, "; ".join(problems) or None
    problems += [
        f"{finding.count} {kind.value}, such as {finding.examples[:1]}"
        for kind, finding in found.anomalies.items()
    ]
    return counts, "; ".join(problems) or f"can't be judged: {found.unjudged}, {found.notes}"
