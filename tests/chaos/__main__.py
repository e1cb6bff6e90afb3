"""``python -m chaos``: runs trials with seeds, one after another."""

import json
import logging
import random
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from chaos.breakages import MUTATIONS, mutated
from chaos.every_load import EVERY_LOAD
from chaos.figures import summary
from chaos.proving import document, prove
from chaos.schedule import FRONTS, Kind, Moment, Schedule, schedule
from chaos.stage import TRANSACTION_TIMEOUT_MS
from chaos.trial import Outcome, run_trial
from support.origin import origin

_console = Console(stderr=True, highlight=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seed", type=int, help="First seed; by default a random one, which is printed.")
@click.option("--seeds", type=click.IntRange(1), help="Number of trials, with consecutive seeds.")
@click.option("--minutes", type=float, default=15, show_default=True, help="Without --seeds: "
              "begin no further trial after this many minutes.")  # fmt: skip
@click.option(
    "--steps", type=click.IntRange(1), default=15, show_default=True, help="Steps of each trial."
)
@click.option("--kind", "kinds", multiple=True, type=click.Choice([k.value for k in Kind]),
              help="Only faults of this kind; may be repeated.")  # fmt: skip
@click.option("--at", "moments", multiple=True, type=click.Choice([m.value for m in Moment]),
              help="Only faults at this moment; may be repeated.")  # fmt: skip
@click.option("--load", "loads", multiple=True, type=click.Choice(list(EVERY_LOAD)),
              help="Only this workload; may be repeated.")  # fmt: skip
@click.option("--front", "fronts", multiple=True, type=click.Choice(FRONTS),
              help="Only this kind of query; may be repeated.")  # fmt: skip
@click.option("--cluster/--local", default=None, help="Run executors in separate "
              "processes, or not; by default, the seed decides.")  # fmt: skip
@click.option("--yarn", is_flag=True, help="Run separate executors in YARN containers.")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Number of "
              "Kafka nodes; with several, each step has a fault of one of them.")  # fmt: skip
@click.option("--mutations", is_flag=True, help="Break spark-eos in each of the known ways. "
              "Fail unless each breakage violates a rule, and the same faults are harmless without "
              "the breakage.")  # fmt: skip
@click.option("--mutation", "chosen", multiple=True, type=click.Choice(list(MUTATIONS)),
              help="Only this breakage; may be repeated.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep data and logs of trials that went well too.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    help="Append outcomes here, such as to ../evidence/chaos.jsonl.",
)
def main(
    *,
    seed: int | None,
    seeds: int | None,
    minutes: float,
    steps: int,
    kinds: tuple[str, ...],
    moments: tuple[str, ...],
    loads: tuple[str, ...],
    fronts: tuple[str, ...],
    cluster: bool | None,
    yarn: bool,
    nodes: int,
    mutations: bool,
    chosen: tuple[str, ...],
    keep: bool,
    json_file: Path | None,
) -> None:
    """Disturbs running queries and verifies their output.

    A failed trial prints its seed, and keeps data and logs; the same seed and options repeat it.
    """
    # asyncio would only log that the proxies' peers, which are killed on purpose, are gone.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    first = random.randrange(100_000) if seed is None else seed
    if mutations or chosen:
        proofs = prove(
            chosen or tuple(MUTATIONS),
            first,
            lambda plan, name, timeout: _run(plan, keep=keep, name=name, timeout=timeout),
        )
        for proof in proofs:
            print(proof)
            _append(json_file, {**document(proof), "seed": first})
        sys.exit(0 if all(proof.found is not None for proof in proofs) else 1)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    while len(outcomes) < seeds if seeds is not None else time.monotonic() - began < minutes * 60:
        plan = schedule(
            first + len(outcomes),
            steps=steps,
            loads=loads or tuple(EVERY_LOAD),
            kinds=[Kind(kind) for kind in kinds],
            fronts=fronts or FRONTS,
            cluster=cluster,
            yarn=yarn,
            nodes=nodes,
            at=[Moment(moment) for moment in moments],
        )
        outcome = _run(plan, keep=keep)
        outcomes.append(outcome)
        where = {"cluster": plan.cluster, "nodes": plan.nodes, "yarn": plan.yarn}
        _append(json_file, {**asdict(outcome), **where})
    Console().print(summary(outcomes))
    failed = [outcome.seed for outcome in outcomes if outcome.problem is not None]
    if failed:
        _console.print(f"failed seeds: {', '.join(map(str, failed))}")
        sys.exit(1)


def _append(file: Path | None, document: dict[str, Any]) -> None:
    if file is not None:
        line = {**document, **origin()}
        with file.open("a") as opened:
            opened.write(json.dumps(line, default=str) + "\n")


def _run(
    plan: Schedule,
    *,
    keep: bool,
    name: str | None = None,
    timeout: int = TRANSACTION_TIMEOUT_MS,
) -> Outcome:
    directory = Path(tempfile.mkdtemp(prefix=f"spark-eos-chaos-{plan.seed}-"))
    own = "YARN" if plan.yarn else "executors of their own"
    where = own if plan.cluster else "one JVM"
    broken = f", broken: {name}" if name is not None else ""
    where += f", {plan.nodes} nodes" if plan.nodes > 1 else ""
    what = f"{plan.load}, {plan.front}, {where}, {len(plan.faults)} faults{broken}"
    _console.print(f"seed {plan.seed}: {what}")
    outcome = run_trial(
        plan,
        directory,
        lambda text: _console.print(f"  {text}"),
        mutated(name, directory) if name is not None else None,
        timeout,
    )
    if outcome.problem is not None:
        _console.print(f"  [bold]seed {plan.seed} failed[/]: {outcome.problem}", soft_wrap=True)
    if keep or (outcome.problem is not None and name is None):
        _console.print(f"  data and logs: {directory}", soft_wrap=True)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


if __name__ == "__main__":
    main()
