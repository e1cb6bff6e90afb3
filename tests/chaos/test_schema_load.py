"""Which values the load with schemas considers wrong."""

import io
from dataclasses import dataclass
from typing import Any

import fastavro

from chaos.invariants import Rule
from chaos.schema_load import OUTPUT, _is_broken, _price, wrong_values

_ID = 7
_BROKEN, _GOOD = 107, 108
_PARSED = fastavro.parse_schema(OUTPUT)


@dataclass
class _Message:
    number: int
    content: bytes | None = b""

    def key(self) -> bytes:
        return b"%d" % self.number

    def value(self) -> bytes | None:
        return self.content


def _output(number: int, /, **changed: Any) -> _Message:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, _PARSED, {**_price(number), **changed})
    return _Message(number, b"\0" + _ID.to_bytes(4, "big") + file.getvalue())


def _wrong(outputs: list[Any], dead_letters: list[Any], *, broken: bool = True) -> list[str]:
    found = wrong_values(outputs, dead_letters, _ID, broken=broken)
    assert all(one.rule is Rule.VALUES_KEPT for one in found)
    return [one.detail for one in found]


def test_outputs_are_what_their_records_lead_to() -> None:
    assert _is_broken(_BROKEN)
    assert not _is_broken(_GOOD)
    assert _wrong([_output(_GOOD), _output(_GOOD + 1)], [_Message(_BROKEN)]) == []
    # Another record's output, null instead of a value, no value, a broken record's output; and a
    # surplus dead letter.
    for output in (
        _output(_GOOD, number=_GOOD + 1),
        _output(_GOOD + 2, tag=None),
        _Message(_GOOD, None),
        _output(_BROKEN),
    ):
        (detail,) = _wrong([output], [])
        assert detail.startswith(f"1 times, first: record {output.number} gave ")
    # Without dead letters, no record is broken.
    assert _wrong([_output(_BROKEN)], [], broken=False) == []
    assert _wrong([], [_Message(_GOOD)]) == [f"1 times, first: record {_GOOD} became a dead letter"]
