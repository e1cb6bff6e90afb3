"""Which outcomes of trials count as detecting a breakage; no trials are run."""

from dataclasses import replace
from typing import Any

import pytest

from chaos.figures import summary
from chaos.invariants import Category, Rule, Violation, violations
from chaos.proving import Proof, judged, prove
from chaos.schedule import Schedule
from chaos.trial import Outcome, Recovery
from spark_eos.verify import Finding, Findings
from spark_eos.verify import Kind as FindingKind

_DOUBLED = Violation(Rule.NOTHING_DOUBLED, "9,997 duplicates, such as ()")
_NOT_NAMED = Violation(Rule.ROW_NAMED, "see query-1.log")
_CLEAN = Outcome(1, "relay", "sink", faults={"late-offsets": 2})


def _judged(**found: Any) -> Proof:
    return judged("a", replace(_CLEAN, **found))


def test_a_violated_invariant_detects_a_breakage() -> None:
    proof = _judged(violations=[_NOT_NAMED, _DOUBLED], stuck="nothing was committed for 150 s")
    assert proof.found == _DOUBLED
    assert str(proof).startswith("a (late-offsets): found out: invariant violated: no output is")


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({}, "not found out: all was well"),
        ({"stuck": "nothing was committed for 150 s"}, "not found out: stuck: nothing was comm"),
        ({"violations": [_NOT_NAMED]}, "not found out: promise violated"),
        ({"harness": "Traceback"}, "void, for the harness failed: Traceback"),
        ({"harness": "Traceback", "violations": [_DOUBLED]}, "void, for the harness failed"),
        ({"faults": {}}, "void, for no fault found an occasion"),
    ],
    ids=["nothing", "stuck", "only a promise", "the harness", "the harness, too", "no fault"],
)
def test_nothing_else_detects_a_breakage(found: dict[str, Any], why: str) -> None:
    proof = _judged(**found)
    assert proof.found is None
    assert proof.why_not.startswith(why)
    assert why.split(":", maxsplit=1)[0] in str(proof)


def test_faults_that_do_harm_by_themselves_prove_nothing() -> None:
    names = ("no-takeover-at-start", "rejoin-with-the-same-member-id", "v6-answer-ignored")
    ran: list[tuple[Schedule, str | None]] = []

    def run(plan: Schedule, name: str | None, _timeout: int) -> Outcome:
        ran.append((plan, name))
        harm = name is not None or "session-expiry" in {f.kind.value for f in plan.faults}
        return replace(_CLEAN, violations=[_DOUBLED] if harm else [])

    found = prove(names, 1, run)
    assert [proof.found for proof in found] == [_DOUBLED, _DOUBLED, None]
    assert found[2].why_not.startswith("void, for without the breakage: invariant violated")
    # The same seed and faults; breakages that share them have one control.
    assert [name for _plan, name in ran] == [None, *names[:2], None]
    assert ran[0][0] == ran[1][0] == ran[2][0]


def test_each_record_or_transaction_anomaly_violates_a_rule() -> None:
    for kind in FindingKind:
        found = Findings(
            records_in=1,
            records_out=1,
            isolation_level="read_committed",
            found={kind: Finding(count=1)},
            complete=True,
        )
        drained = violations(found, drained=True)
        assert bool(drained) == (kind is not FindingKind.UNPROCESSED), kind
        # A killed query may have been in a transaction.
        under_way = violations(found, drained=False)
        assert bool(under_way) == (bool(drained) and kind is not FindingKind.OPEN), kind
        assert all(v.rule.category is Category.INVARIANT for v in drained)


def test_what_misses_the_bar_is_called_missed() -> None:
    recoveries = [
        Recovery("worker-kill", 4.9, 4.9, restarted=False),
        Recovery("worker-kill", 5.1, 5.1, restarted=False),
    ]
    found = [replace(_CLEAN, faults={"worker-kill": 2}, recoveries=recoveries)]
    columns = {str(c.header): list(c.cells) for c in summary(found).columns}
    assert columns["fault"][0] == "worker-kill"
    assert columns["missed"][0] == "1 missed"
    assert columns["most s"][0] == "5.1"
