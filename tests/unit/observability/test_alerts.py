"""The alerts of docs/observability.md, over metrics recorded from queries that stalled.

`support.record_stalls` has recorded them. `support.promql` evaluates them here; over the same
recordings Prometheus 2.42 gave the same vectors.
"""

import re

import pytest

from support.pages import code_blocks
from support.promql import Recording, Series, evaluate, load
from support.record_stalls import RECORDED

_RULE = re.compile(r"- alert: (\w+)\n +expr: (.+)\n")


def _alert(name: str) -> str:
    text = "".join(code_blocks("observability", "yaml"))
    # YAML's folded lines are one.
    rules = dict(_RULE.findall(re.sub(r">-\n +(.+)\n +", r"\1 ", text)))
    return str(rules[name])


STALLED = _alert("SparkEosStalled")
LIMIT = 300.0
# What the page had before: it fired in neither case.
BY_LAG = (
    "sum by (group_id) (spark_eos_source_lag_records)",
    "time() - spark_eos_last_batch_timestamp_seconds",
)


def _fires(recording: Recording, now: float) -> bool:
    return bool(evaluate(STALLED, recording, now))


def _last_seen(recording: Recording) -> float:
    (values,) = (
        [value for _moment, value in points if value is not None]
        for series, points in recording.items()
        if series.name == "spark_eos_last_seen_timestamp_seconds"
    )
    return max(values)


def test_it_does_not_fire_while_a_query_runs_or_has_nothing_to_read() -> None:
    recording, events = load(RECORDED / "hangs.json")
    assert events["runs again"] - events["idle"] > LIMIT
    moment = events["runs"]
    while moment < events["hangs"]:
        assert not _fires(recording, moment), moment - events["runs"]
        moment += 15
    # Without what Spark says of it, it would: there was no batch for so long.
    by_batches = STALLED.replace("last_seen", "last_batch")
    assert evaluate(by_batches, recording, events["runs again"])


def test_it_fires_when_a_query_hangs() -> None:
    recording, events = load(RECORDED / "hangs.json")
    assert not _fires(recording, _last_seen(recording) + LIMIT - 1)
    ((labels, stalled),) = evaluate(STALLED, recording, events["end"]).items()
    assert [name for name, _ in labels] == ["group_id"]
    assert stalled == pytest.approx(events["end"] - _last_seen(recording))
    assert stalled > LIMIT
    # All had been read before: the lag of the last batch says nothing.
    lag, age = (evaluate(part, recording, events["end"]) for part in BY_LAG)
    assert not any(lag.values())
    assert all(value > LIMIT for value in age.values())


def test_it_fires_when_a_driver_is_dead() -> None:
    recording, events = load(RECORDED / "dies.json")
    # Its metrics are gone with the first scrape that fails.
    for part in BY_LAG:
        assert evaluate(part, recording, events["dies"] - 1)
        assert not evaluate(part, recording, events["dies"] + 30)
    assert not _fires(recording, events["dies"] + LIMIT - 60)
    assert _fires(recording, events["dies"] + LIMIT + 1)
    # For a day.
    assert _fires(recording, events["dies"] + 23 * 3_600)
    assert not _fires(recording, events["dies"] + 25 * 3_600)


def test_it_ends_when_the_query_is_back() -> None:
    recording, events = load(RECORDED / "dies.json")
    (dead,) = (s for s in recording if s.name == "spark_eos_last_seen_timestamp_seconds")
    # On another host, so another series.
    moved = Series(dead.name, (*dead.labels, ("instance", "other")))
    back = events["dies"] + 1_000
    assert _fires(recording, back)
    assert not _fires(recording | {moved: [(back, back)]}, back + 1)


def test_vectors_are_those_of_prometheus() -> None:
    a, b = (("group_id", "a"), ("topic", "t")), (("group_id", "a"), ("topic", "u"))
    recording: Recording = {
        Series("m", a): [(0.0, 1.0), (15.0, 3.0)],
        Series("m", b): [(0.0, 5.0), (15.0, None)],
    }
    assert evaluate("m", recording, 10.0) == {a: 1.0, b: 5.0}
    # A stale series is gone at once, one that is not scraped after five minutes.
    assert evaluate("m", recording, 20.0) == {a: 3.0}
    assert evaluate("m", recording, 320.0) == {}
    assert evaluate("last_over_time(m[1h])", recording, 320.0) == {a: 3.0, b: 5.0}
    assert evaluate("last_over_time(m[5m])", recording, 301.0) == {a: 3.0}
    assert evaluate("sum by (group_id) (m)", recording, 10.0) == {(("group_id", "a"),): 6.0}
    assert evaluate("time() - max by (topic) (m) > 6", recording, 10.0) == {(("topic", "t"),): 9.0}
