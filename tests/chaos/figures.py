"""The results of trials as a table."""

import statistics

from rich.table import Table

from chaos.schedule import DOWNTIME, Kind
from chaos.trial import BAR, Outcome, Recovery
from support.origin import origin


def summary(outcomes: list[Outcome]) -> Table:
    """All trials by kinds of faults, with the recovery times compared with the bar."""
    records = sum(o.records for o in outcomes)
    faults = sum(sum(o.faults.values()) for o in outcomes)
    steps = sum(o.findings.get("steps_replayed", 0) for o in outcomes)
    of = origin()
    table = Table(
        title=f"{len(outcomes)} seeds, {faults} faults, {records:,} records, "
        f"{sum(o.transactions for o in outcomes):,} transactions, {steps:,} steps "
        f"taken through the model ({of['date']}, {of['commit']})",
        caption=f"Recovery: seconds from the fault, or the end of one that lasts, to the next "
        f"committed transaction. Missed: more than {BAR:g} s.",
    )
    table.add_column("fault")
    for name in ("times", "alone", "recovery p50 s", "p99 s", "most s", "missed"):
        table.add_column(name, justify="right")
    recoveries = [recovery for outcome in outcomes for recovery in outcome.recoveries]
    for kind in Kind:
        times = sum(o.faults.get(kind.value, 0) for o in outcomes)
        if times:
            alone = [r for r in recoveries if r.kinds == kind.value]
            table.add_row(kind.value, str(times), *_figures(alone))
    pairs = [r for r in recoveries if "+" in r.kinds]
    table.add_row("in pairs", str(2 * len(pairs)), *_figures(pairs))
    table.add_section()
    down = {kind.value for kind in DOWNTIME}
    for name, chosen in (
        ("all steps", recoveries),
        (
            "steps without broker downtime and session expiry",
            [r for r in recoveries if not down & set(r.kinds.split("+"))],
        ),
        (
            "steps after which the same driver went on",
            [r for r in recoveries if not r.restarted],
        ),
        ("steps after which a driver was started again", [r for r in recoveries if r.restarted]),
    ):
        table.add_row(name, "", *_figures(chosen))
    table.add_section()
    for front in sorted({o.front for o in outcomes}):
        of_front = [o for o in outcomes if o.front == front]
        table.add_row(
            f"front {front}: {len(of_front)} seeds",
            str(sum(sum(o.faults.values()) for o in of_front)),
            *_figures([r for o in of_front for r in o.recoveries]),
        )
    return table


def _figures(recoveries: list[Recovery]) -> tuple[str, ...]:
    if not recoveries:
        return "", "", "", "", ""
    seconds = sorted(r.seconds for r in recoveries)
    last = seconds[min(len(seconds) - 1, int(len(seconds) * 0.99))]
    missed = sum(r.missed for r in recoveries)
    return (
        str(len(seconds)),
        f"{statistics.median(seconds):.1f}",
        f"{last:.1f}",
        f"{seconds[-1]:.1f}",
        f"{missed} missed" if missed else "",
    )
