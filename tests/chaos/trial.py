"""A seed's trial: faults step by step, recovery after each step, and finally the verdict."""

import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.schema_registry import SchemaRegistryClient

from chaos.faults import inflict_together
from chaos.invariants import Rule, Violation, ViolationError, violations
from chaos.loads import EXPECT, POSITION
from chaos.lockstep import judged, read_logs
from chaos.processes import reports_of
from chaos.replay import replay
from chaos.schedule import DEADLY, FATAL, NODES, Kind, Schedule, Step
from chaos.schema_load import OUTPUT_SUBJECT, wrong_values
from chaos.stage import TRANSACTION_TIMEOUT_MS, Stage, TrialError, wait_for
from chaos.staged_judging import judge
from chaos.stall import record_stall
from chaos.traces import resolved, save
from spark_eos.verify import Kind as FindingKind
from spark_eos.verify import Verdict, verify
from support.flow import consume

# Maximum seconds from a fault to the next committed transaction.
BAR = 5.0
_PATIENCE = 300.0
_DRAIN_PATIENCE = 480.0
_DRAINS = 3
_REFUSED = "Message size too large"
_MARKERS_SKIPPED = "these partitions are likely deleted already and hence can be skipped"
_ROW_TO_BLAME = re.compile(r"source (?:in|progress)-\S+-\d+ offset \d+, for topic 'out-")

Log = Callable[[str], None]


@dataclass(frozen=True)
class Recovery:
    """The time from a step's faults to the next committed transaction."""

    kinds: str  # kinds of the faults, joined by "+" if there were two
    # Since the end of the faults: the kill, the cut, or the end of a lasting fault. Includes the
    # start of a new driver and its Spark.
    seconds: float
    since_begin: float  # since the beginning of the first fault
    restarted: bool  # whether a driver had to be started again
    # For a new driver, seconds from the end of the faults until its query had started, with a JVM,
    # a session and the checks of a start.
    started: float | None = None

    @property
    def missed(self) -> bool:
        """True if the recovery took longer than the bar."""
        return self.seconds > BAR


@dataclass
class Outcome:
    seed: int
    load: str
    front: str  # how the query writes
    faults: dict[str, int] = field(default_factory=dict)  # number of faults by kind
    recoveries: list[Recovery] = field(default_factory=list)  # one for each step
    records: int = 0  # number of input records
    transactions: int = 0  # number in reported batches
    starts: int = 0  # number of starts of the query's process
    violations: list[Violation] = field(default_factory=list)  # of the rules of `chaos.invariants`
    # What the query failed to finish in time, or None; this violates no rule.
    stuck: str | None = None
    # How the harness itself failed, or None; a failure makes the result void.
    harness: str | None = None
    # The verifier's counts; for a staged query, the comparison's.
    findings: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0  # duration

    @property
    def problem(self) -> str | None:
        """All problems as text; None if there are none."""
        words = [str(violation) for violation in self.violations]
        words += [] if self.stuck is None else [f"stuck: {self.stuck}"]
        words += [] if self.harness is None else [f"the harness failed: {self.harness}"]
        return "; ".join(words) or None


def run_trial(
    plan: Schedule,
    directory: Path,
    log: Log,
    project: Path | None = None,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> Outcome:
    outcome = Outcome(plan.seed, plan.load, plan.front)
    began = time.monotonic()
    try:
        with Stage(plan, directory, project, transaction_timeout_ms) as stage:
            _play(stage, outcome, log)
    except Exception:  # noqa: BLE001 - a seed that breaks the harness is also reported
        outcome.harness = outcome.harness or traceback.format_exc()
    outcome.seconds = time.monotonic() - began
    return outcome


def _play(stage: Stage, outcome: Outcome, log: Log) -> None:
    drained = False
    try:
        stage.start()
        _recovered(stage, time.monotonic(), starts=0)
        for step in stage.plan.steps:
            _step(stage, step, outcome, log)
        log("reading the rest")
        _drain(stage)
        drained = True
    except ViolationError as error:
        outcome.violations.append(error.violation)
    except TrialError as error:
        outcome.stuck = record_stall(stage, str(error))
    except Exception:  # noqa: BLE001 - see above
        outcome.harness = record_stall(stage, traceback.format_exc())
    if not drained:
        stage.end()
    outcome.records = stage.source.produced
    log(f"verifying {outcome.records:,} records")
    try:
        _judge(stage, outcome, drained=drained)
        if "steps_replayed" in outcome.findings:
            log(f"{outcome.findings['steps_replayed']:,} steps were taken through the model")
    except Exception:  # noqa: BLE001 - see above
        outcome.harness = outcome.harness or record_stall(stage, traceback.format_exc())
    outcome.violations += [*stage.watcher.violations, *_rows_not_named(stage.directory)]
    outcome.violations += [
        Violation(Rule.OFFSETS_LAST, f"{len(stage.order.violations)} times, first {first}")
        for first in stage.order.violations[:1]
    ]
    if outcome.violations and _MARKERS_SKIPPED in stage.broker.log():
        note = " (the broker has left transactions without markers: KAFKA-20734)"
        first = outcome.violations[0]
        outcome.violations[0] = Violation(first.rule, first.detail + note)
    outcome.starts = stage.starts
    outcome.transactions = sum(
        int(report.get("transactions", 0))
        for file in stage.directory.glob("query-*.reports")
        for report in reports_of(file)
    )


def _step(stage: Stage, step: Step, outcome: Outcome, log: Log) -> None:
    time.sleep(step.pause)
    kinds = "+".join(fault.kind.value for fault in step.faults)
    when = "".join(f" at {fault.at.value}" for fault in step.faults if fault.at is not None)
    starts = stage.starts
    began = time.monotonic()
    over, missed = inflict_together(stage, step.faults, step.between)
    over_by_the_clock = time.time()
    done = {fault.kind for fault in step.faults if fault not in missed}
    for kind in done:
        outcome.faults[kind.value] = outcome.faults.get(kind.value, 0) + 1
    if FATAL & done:
        _await_end(stage)
    moved = _recovered(stage, over, starts)
    if NODES & done:
        stage.heal()
    restarted = stage.starts > starts
    started = max(0.0, stage.query.queries()[-1] - over) if restarted else None
    recovery = Recovery(kinds, moved - over, moved - began, restarted, started)
    outcome.recoveries.append(recovery)
    if DEADLY & done:
        left = stage.abandoned(over_by_the_clock)
        if left:
            raise ViolationError(Rule.NOTHING_LEFT_OPEN, f"{kinds}{when}: {', '.join(left)}")
    missing = f": missed the bar of {BAR:g} s" if recovery.missed else ""
    log(f"{kinds}{when}: recovered in {recovery.seconds:.1f} s{missing}")


def _await_end(stage: Stage) -> None:
    """Waits until the driver is gone: commits by its remaining tasks don't count as recovery."""
    wait_for(
        lambda: stage.query.exit_status() is not None,
        time.monotonic() + _PATIENCE,
        f"the driver goes on although it, or its JVM, was killed: {stage.query.log}",
    )


def _recovered(stage: Stage, since: float, starts: int) -> float:
    """The time at which offsets moved again, with a query that is still running."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        time.sleep(0.02)
        stage.keep_going()
        queries = stage.query.queries() if stage.starts > starts else [since]
        if not queries:
            continue
        moved = stage.watcher.next_commit(max(since, queries[-1]))
        if moved is not None and stage.query.exit_status() is None:
            return moved
    raise TrialError(f"nothing was committed for {_PATIENCE:g} s; see {stage.query.log}")


def _drain(stage: Stage) -> None:
    stage.watcher.stop_feeding()
    _to_the_end(stage)
    if stage.load.closing is not None:
        # Only now: records read together with these would be late.
        stage.source.close(stage.partitions)
        _to_the_end(stage)


def _to_the_end(stage: Stage) -> None:
    for _ in range(_DRAINS):
        stage.query.kill()
        stage.start(drain=True)
        end = time.monotonic() + _DRAIN_PATIENCE
        while stage.query.exit_status() is None and time.monotonic() < end:
            time.sleep(0.1)
        if stage.query.exit_status() == 0:
            return
    raise TrialError(f"without any fault the query does not get to the end; see {stage.query.log}")


def _rows_not_named(directory: Path) -> list[Violation]:
    """Queries that ended because of a record without naming its row."""
    logs = {log: log.read_text(errors="replace") for log in directory.glob("query-*.log")}
    return [
        Violation(Rule.ROW_NAMED, f"see {log.name}")
        for log, text in sorted(logs.items())
        if _REFUSED in text and not _ROW_TO_BLAME.search(text)
    ][:1]


def _dead_letters_miscounted(stage: Stage) -> list[Violation]:
    """Checks that no more dead letters are reported than exist; a killed query reports fewer."""
    reported = sum(
        sum(report.get("dead_letters", {}).values())
        for file in stage.directory.glob("*.reports")
        for report in reports_of(file)
    )
    there = sum(len(consume(stage.servers, topic)) for topic in stage.dead_letter_topics)
    if reported <= there:
        return []
    return [Violation(Rule.COUNTED, f"{reported} are reported, and {there} are there")]


def _wrong_values(stage: Stage) -> list[Violation]:
    if stage.registry is None:
        return []
    with SchemaRegistryClient({"url": stage.registry.url}) as client:
        schema = client.get_latest_version(OUTPUT_SUBJECT).schema_id
    assert schema is not None
    return wrong_values(
        consume(stage.servers, stage.targets[0]),
        [m for topic in stage.dead_letter_topics for m in consume(stage.servers, topic)],
        schema,
        broken=stage.load.dead_letters,
    )


def _differing_logs(
    stage: Stage, records_out: int, counts: dict[str, int], *, drained: bool
) -> list[Violation]:
    """Differences between the target brokers' logs and the verifier."""
    pairs = stage.pairs()
    logged = read_logs(
        stage.broker.nodes[0]._data(),
        group_id=stage.name,
        prefix=f"spark-eos/{stage.name}/",
        outputs=[*stage.targets, *stage.dead_letter_topics],
        positions=stage.staged is None,
        pairs=pairs,
        drained=drained,
    )
    counts |= {"transactions_committed": logged.committed, "transactions_aborted": logged.aborted}
    violated = judged(logged, records_out, drained=drained)
    events = resolved(stage.trace.events, stage.topic_names(), pairs, logged.batches)
    save(events, stage.directory / "trace.gz")
    if Kind.OFFSETS_DELETED in {fault.kind for fault in stage.plan.faults}:
        return violated  # The harness restores offsets directly, past the proxy.
    replayed = replay(events, stage.transaction_timeout_ms, several_nodes=stage.plan.nodes > 1)
    counts["steps_replayed"] = replayed.steps
    return violated + [Violation(Rule.ALLOWED, problem) for problem in replayed.problems[:1]]


def _judge(stage: Stage, outcome: Outcome, *, drained: bool) -> None:
    if stage.staged is not None:
        violated, outcome.findings = judge(stage, drained=drained)
        counts = outcome.findings
        written = counts["records_out"] + sum(
            len(consume(stage.servers, t)) for t in stage.dead_letter_topics
        )
        violated += _differing_logs(stage, written, counts, drained=drained)
        outcome.violations += [*violated, *_dead_letters_miscounted(stage)]
        return
    found = verify(
        kafka={"bootstrap.servers": stage.servers},
        source_kafka={"bootstrap.servers": stage.source_servers} if stage.mirrored else None,
        inputs=stage.sources,
        outputs=stage.targets,
        dead_letter_topics=stage.dead_letter_topics,
        position_header=POSITION,
        expect_header=EXPECT,
        group_id=stage.name,
        prefix=f"spark-eos/{stage.name}/",
        complete=drained,
    )
    outcome.violations += _wrong_values(stage)
    counts = {kind.value: found.count(kind) for kind in FindingKind}
    counts["records_in"], counts["records_out"] = found.records_in, found.records_out
    counts["order_violations"] = len(stage.order.violations)
    outcome.violations += _differing_logs(stage, found.records_out, counts, drained=drained)
    outcome.findings = counts
    seen = violations(found, drained=drained)
    outcome.violations += seen
    outcome.violations += _dead_letters_miscounted(stage)
    if outcome.violations or not drained:
        return
    if found.records_in != stage.source.produced:
        outcome.harness = f"{stage.source.produced} records produced, {found.records_in} read"
    elif found.count(FindingKind.UNPROCESSED):
        outcome.stuck = f"drained, but {found.count(FindingKind.UNPROCESSED)} are not processed"
    elif found.verdict is not Verdict.SOUND:
        outcome.harness = f"can't be judged: {found.unjudged}, {found.notes}"
