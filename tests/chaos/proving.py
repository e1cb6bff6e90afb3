"""Checks that the faults detect deliberate breakages: one run with each, and one without.

A breakage counts as detected if it violates an invariant of `chaos.invariants`, and if the same
seed and faults violate none without it. A query that gets stuck detects nothing. A harness that
fails makes a result void, and so do faults that find no occasion.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chaos.breakages import MUTATIONS, Mutation
from chaos.invariants import Category, Violation
from chaos.schedule import Schedule, schedule
from chaos.trial import Outcome


@dataclass(frozen=True)
class Proof:
    name: str  # the breakage
    faults: tuple[str, ...]  # kinds of inflicted faults
    found: Violation | None  # the violation that detected it, or None
    why_not: str = ""  # why it was not detected, or why the result is void

    def __str__(self) -> str:
        by = self.why_not if self.found is None else f"found out: {self.found}"
        return f"{self.name} ({', '.join(self.faults) or 'no fault'}): {' '.join(by.split())}"


# A trial of a schedule, with a breakage's name or None, and a transaction timeout in milliseconds.
Run = Callable[[Schedule, str | None, int], Outcome]


def prove(names: tuple[str, ...], seed: int, run: Run) -> list[Proof]:
    """Runs each breakage and its control."""
    controls: dict[tuple[Schedule, int], Outcome] = {}
    proofs = []
    for name in names:
        mutation = MUTATIONS[name]
        plan = _plan(mutation, seed)
        key = (plan, mutation.transaction_timeout_ms)
        if key not in controls:
            controls[key] = run(plan, None, mutation.transaction_timeout_ms)
        if controls[key].problem is not None:
            why = f"void, for without the breakage: {controls[key].problem}"
            proofs.append(Proof(name, (), None, why))
            continue
        broken = run(plan, name, mutation.transaction_timeout_ms)
        proofs.append(judged(name, broken))
    return proofs


def judged(name: str, broken: Outcome) -> Proof:
    """The proof of a trial with a breakage, if its control run was clean."""
    faults = tuple(broken.faults)
    if broken.harness is not None:
        return Proof(name, faults, None, f"void, for the harness failed: {broken.harness}")
    found = next((v for v in broken.violations if v.rule.category is Category.INVARIANT), None)
    if found is not None:
        return Proof(name, faults, found)
    if not faults:
        return Proof(name, faults, None, "void, for no fault found an occasion: use another --seed")
    return Proof(name, faults, None, f"not found out: {broken.problem or 'all was well'}")


def _plan(mutation: Mutation, seed: int) -> Schedule:
    return schedule(
        seed,
        steps=mutation.steps,
        loads=[mutation.load],
        kinds=mutation.kinds,
        fronts=[mutation.front],
        cluster=False,
        at=mutation.at,
    )


def document(proof: Proof) -> dict[str, Any]:
    """A proof as a line of evidence/chaos.jsonl."""
    return {
        "breakage": proof.name,
        "faults": sorted(set(proof.faults)),
        "rule": None if proof.found is None else proof.found.rule.value,
        "why_not": proof.why_not,
    }
