"""PromQL, as far as the alerts of docs/observability.md go, over samples that were recorded.

It follows https://prometheus.io/docs/prometheus/latest/querying/basics/ and functions/: instant
selectors look back five minutes and stop at a stale marker, range selectors leave the markers out,
comparisons filter, arithmetic and ``time() - v`` drop the metric's name. Anything else is refused.
`test_alerts.py` says how it was compared with Prometheus' own promtool.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Labels = tuple[tuple[str, str], ...]
Vector = dict[Labels, float]

_LOOK_BACK = 300.0
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_TOKEN = re.compile(r"\s*(\d+[smhd]|\d+(?:\.\d+)?|\w+|[-<>()\[\],])")


class Series(NamedTuple):
    """A time series: metric and labels."""

    name: str
    labels: Labels


# Points by series: seconds since 1970, and the value; None marks the series as stale.
Recording = dict[Series, list[tuple[float, float | None]]]


def save(recording: Recording, events: dict[str, float], path: Path) -> None:
    """Writes a recording, with moments that somebody wants to know of."""
    series = [
        {"name": name, "labels": dict(labels), "points": points}
        for (name, labels), points in recording.items()
    ]
    path.write_text(json.dumps({"events": events, "series": series}) + "\n")


def load(path: Path) -> tuple[Recording, dict[str, float]]:
    document = json.loads(path.read_text())
    recording = {
        Series(one["name"], tuple(sorted(one["labels"].items()))): [
            (moment, value) for moment, value in one["points"]
        ]
        for one in document["series"]
    }
    return recording, document["events"]


def evaluate(expression: str, recording: Recording, now: float) -> Vector:
    found = _Evaluation(expression, recording, now).result()
    assert isinstance(found, dict), f"a number: {expression}"
    return found


class _Evaluation:
    """Reads an expression from left to right, and computes as it goes."""

    def __init__(self, expression: str, recording: Recording, now: float) -> None:
        self._tokens = _TOKEN.findall(expression)
        assert "".join(self._tokens) == re.sub(r"\s", "", expression), f"not known: {expression}"
        self._recording = recording
        self._now = now

    def result(self) -> Vector | float:
        value = self._difference()
        while self._next() in {">", "<"}:
            greater = self._take() == ">"
            limit = self._difference()
            assert isinstance(value, dict)
            assert isinstance(limit, float)
            value = {k: v for k, v in value.items() if (v > limit if greater else v < limit)}
        assert not self._tokens, self._tokens
        return value

    def _difference(self) -> Vector | float:
        value = self._operand()
        while self._next() == "-":
            self._take()
            value = _minus(value, self._operand())
        return value

    def _operand(self) -> Vector | float:
        word = self._take()
        if word == "(":
            value = self._difference()
            self._take(")")
            return value
        if re.fullmatch(r"\d+(\.\d+)?", word):
            return float(word)
        if word == "time":
            self._take("(")
            self._take(")")
            return self._now
        if word in {"max", "sum"}:
            return self._aggregate(max if word == "max" else sum)
        if word == "last_over_time":
            return self._over_time(lambda points: points[-1])
        if self._next() == "(":
            raise NotImplementedError(word)
        return self._instant(word)

    def _aggregate(self, combine: Callable[[list[float]], float]) -> Vector:
        self._take("by")
        self._take("(")
        by = [self._take()]
        while self._next() == ",":
            self._take()
            by.append(self._take())
        self._take(")")
        self._take("(")
        values = self._difference()
        self._take(")")
        assert isinstance(values, dict)
        groups: dict[Labels, list[float]] = {}
        for labels, value in values.items():
            kept = tuple((name, text) for name, text in labels if name in by)
            groups.setdefault(kept, []).append(value)
        return {labels: combine(found) for labels, found in groups.items()}

    def _over_time(self, combine: Callable[[list[float]], float]) -> Vector:
        self._take("(")
        name = self._take()
        self._take("[")
        length = self._take()
        self._take("]")
        self._take(")")
        begin = self._now - int(length[:-1]) * _UNITS[length[-1]]
        found = {}
        for series, points in self._recording.items():
            values = [v for t, v in points if begin < t <= self._now and v is not None]
            if series.name == name and values:
                found[series.labels] = combine(values)
        return found

    def _instant(self, name: str) -> Vector:
        found = {}
        for series, points in self._recording.items():
            recent = [v for t, v in points if self._now - _LOOK_BACK < t <= self._now]
            if series.name == name and recent and recent[-1] is not None:
                found[series.labels] = recent[-1]
        return found

    def _next(self) -> str:
        return str(self._tokens[0]) if self._tokens else ""

    def _take(self, wanted: str = "") -> str:
        token = str(self._tokens.pop(0))
        assert wanted in {"", token}, f"{token} where {wanted} should be"
        return token


def _minus(left: Vector | float, right: Vector | float) -> Vector | float:
    if isinstance(left, float) and isinstance(right, float):
        return left - right
    if isinstance(left, float) and isinstance(right, dict):
        return {labels: left - value for labels, value in right.items()}
    assert isinstance(left, dict)
    if isinstance(right, float):
        return {labels: value - right for labels, value in left.items()}
    return {labels: value - right[labels] for labels, value in left.items() if labels in right}
