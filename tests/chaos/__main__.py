"""``python -m chaos``: runs trials of seeds, one after another."""

import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from chaos.breakages import MUTATIONS, mutated
from chaos.loads import LOADS
from chaos.schedule import DOWNTIME, Kind, Schedule, schedule
from chaos.stage import TRANSACTION_TIMEOUT_MS
from chaos.trial import Outcome, run_trial

_console = Console(stderr=True, highlight=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seed", type=int, help="First seed; by default a random one, which is printed.")
@click.option("--seeds", type=click.IntRange(1), help="Number of seeds, each one more.")
@click.option("--minutes", type=float, default=15, show_default=True, help="Unless --seeds: begin "
              "no further seed after so many minutes.")  # fmt: skip
@click.option("--steps", type=click.IntRange(1), default=15, show_default=True, help="Of a seed.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice([k.value for k in Kind]),
              help="Only faults of this kind; may be repeated.")  # fmt: skip
@click.option("--load", "loads", multiple=True, type=click.Choice(list(LOADS)), help="Only it.")
@click.option("--cluster/--local", default=None, help="Executors in processes of their own, or "
              "not; by default the seed decides.")  # fmt: skip
@click.option("--mutations", is_flag=True, help="Break spark-eos in each of the known ways, and "
              "fail unless each is found out.")  # fmt: skip
@click.option("--mutation", "chosen", multiple=True, type=click.Choice(list(MUTATIONS)),
              help="Only this one; may be repeated.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep data and logs of trials that went well too.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Append outcomes here.")
def main(
    *,
    seed: int | None,
    seeds: int | None,
    minutes: float,
    steps: int,
    kinds: tuple[str, ...],
    loads: tuple[str, ...],
    cluster: bool | None,
    mutations: bool,
    chosen: tuple[str, ...],
    keep: bool,
    json_file: Path | None,
) -> None:
    """Disturbs running queries and verifies what they wrote.

    A failure prints its seed and keeps data and logs; the same seed and options do the same again.
    """
    first = random.randrange(100_000) if seed is None else seed
    if mutations or chosen:
        sys.exit(_find_out(chosen or tuple(MUTATIONS), first, keep=keep))
    began = time.monotonic()
    outcomes: list[Outcome] = []
    while len(outcomes) < seeds if seeds is not None else time.monotonic() - began < minutes * 60:
        plan = schedule(
            first + len(outcomes),
            steps=steps,
            loads=loads or tuple(LOADS),
            kinds=[Kind(kind) for kind in kinds],
            cluster=cluster,
        )
        outcome = _run(plan, keep=keep)
        outcomes.append(outcome)
        if json_file is not None:
            with json_file.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
    Console().print(summary(outcomes))
    failed = [outcome.seed for outcome in outcomes if outcome.problem is not None]
    if failed:
        _console.print(f"failed seeds: {', '.join(map(str, failed))}")
        sys.exit(1)


def _run(plan: Schedule, *, keep: bool, name: str | None = None) -> Outcome:
    mutation = None if name is None else MUTATIONS[name]
    directory = Path(tempfile.mkdtemp(prefix=f"spark-eos-chaos-{plan.seed}-"))
    where = "executors of their own" if plan.cluster else "one JVM"
    broken = f", broken: {name}" if name is not None else ""
    _console.print(f"seed {plan.seed}: {plan.load}, {where}, {len(plan.faults)} faults{broken}")
    outcome = run_trial(
        plan,
        directory,
        lambda text: _console.print(f"  {text}"),
        mutated(name, directory) if name is not None else None,
        TRANSACTION_TIMEOUT_MS if mutation is None else mutation.transaction_timeout_ms,
    )
    if outcome.problem is not None:
        _console.print(f"  [bold]seed {plan.seed} failed[/]: {outcome.problem}", soft_wrap=True)
    if keep or (outcome.problem is not None and name is None):
        _console.print(f"  data and logs: {directory}", soft_wrap=True)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


def _find_out(names: tuple[str, ...], seed: int, *, keep: bool) -> int:
    table = Table(title="Deliberate breakages")
    for column in ("breakage", "faults", "found out by"):
        table.add_column(column)
    missed = 0
    for name in names:
        mutation = MUTATIONS[name]
        plan = schedule(
            seed, steps=mutation.steps, loads=[mutation.load], kinds=mutation.kinds, cluster=False
        )
        outcome = _run(plan, keep=keep, name=name)
        missed += outcome.problem is None
        table.add_row(name, ", ".join(outcome.faults), outcome.problem or "[bold]nothing[/]")
    Console().print(table)
    return 1 if missed else 0


def summary(outcomes: list[Outcome]) -> Table:
    """All trials by kinds of faults."""
    records = sum(o.records for o in outcomes)
    faults = sum(sum(o.faults.values()) for o in outcomes)
    table = Table(
        title=f"{len(outcomes)} seeds, {faults} faults, {records:,} records, "
        f"{sum(o.transactions for o in outcomes):,} transactions"
    )
    table.add_column("fault")
    for name in ("times", "alone", "recovery p50 s", "p99 s"):
        table.add_column(name, justify="right")
    for kind in Kind:
        times = sum(o.faults.get(kind.value, 0) for o in outcomes)
        alone = sorted(r.seconds for o in outcomes for r in o.recoveries if r.kinds == kind.value)
        if times:
            table.add_row(kind.value, str(times), str(len(alone)), *_percentiles(alone))
    pairs = sorted(r.seconds for o in outcomes for r in o.recoveries if "+" in r.kinds)
    table.add_row("in pairs", str(2 * len(pairs)), "", *_percentiles(pairs))
    recoveries = [recovery for outcome in outcomes for recovery in outcome.recoveries]
    after = sorted(r.query_seconds for r in recoveries if r.query_seconds is not None)
    restarted = sorted(r.seconds for r in recoveries if r.query_seconds is not None)
    same = sorted(r.seconds for r in recoveries if r.query_seconds is None)
    table.add_section()
    down = {kind.value for kind in DOWNTIME}
    up = sorted(r.seconds for r in recoveries if not down & set(r.kinds.split("+")))
    for name, seconds in (
        ("all steps", sorted(r.seconds for r in recoveries)),
        ("steps without broker downtime and session expiry", up),
        ("steps after which the same driver went on", same),
        ("steps after which a driver was started again", restarted),
        ("of that, since its query started", after),
    ):
        table.add_row(name, "", str(len(seconds)), *_percentiles(seconds))
    return table


def _percentiles(seconds: list[float]) -> tuple[str, str]:
    if not seconds:
        return "", ""
    last = seconds[min(len(seconds) - 1, int(len(seconds) * 0.99))]
    return f"{statistics.median(seconds):.1f}", f"{last:.1f}"


if __name__ == "__main__":
    main()
