"""Random Avro schemas, their defaults and values."""

import random
from collections.abc import Callable
from typing import Any

# Pairs of types that are refused in one union; the last pair only if reader and writer differ.
ALIKE = ({"int", "long"}, {"float", "double"}, {"string", "bytes"})


class RandomSchemas:
    """Makes types, their defaults in JSON, and values for fastavro."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._number = 0

    def kind(self, depth: int, *, union: bool = True) -> Any:
        names = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
        more = ["enum", "fixed", "record", "array", "map"] if depth else ["enum", "fixed"]
        name = self.random.choice([*names, *more, *(["union"] * 6 if union and depth else [])])
        self._number += 1
        full = f"N{self._number}"
        makers: dict[str, Callable[[], Any]] = {
            "union": lambda: self._union(depth - 1),
            "enum": lambda: {"type": "enum", "name": full, "symbols": ["S", "T"]},
            "fixed": lambda: {"type": "fixed", "name": full, "size": 2},
            "array": lambda: {"type": "array", "items": self.kind(depth - 1)},
            "map": lambda: {"type": "map", "values": self.kind(depth - 1)},
            "record": lambda: {"type": "record", "name": full, "fields": self.fields(depth - 1)},
        }
        return makers[name]() if name in makers else name

    def _union(self, depth: int) -> list[Any]:
        found: dict[str, Any] = {}
        for _ in range(self.random.randint(2, 4)):
            one = self.kind(depth, union=False)
            found[fastavro_name(one)] = one
            if any(pair <= found.keys() for pair in ALIKE):
                found.pop(fastavro_name(one))
        return [*found.values()]

    def fields(self, depth: int, prefix: str = "f") -> list[dict[str, Any]]:
        made = []
        for number in range(self.random.randint(1, 3)):
            kind = self.kind(depth)
            made.append({"name": f"{prefix}{number}", "type": kind, "default": self.default(kind)})
        return made

    def default(self, kind: Any) -> Any:
        if isinstance(kind, list):
            # Java also accepts defaults of other members, but reads some of them as other values.
            return self.default(kind[0])
        name = kind["type"] if isinstance(kind, dict) else kind
        if name == "record":
            given = [field for field in kind["fields"] if self.random.random() < 0.6]
            return {field["name"]: self.default(field["type"]) for field in given}
        if name == "array":
            return [self.default(kind["items"]) for _ in range(self.random.randint(0, 2))]
        if name == "map":
            return {"k": self.default(kind["values"])} if self.random.random() < 0.6 else {}
        choices: dict[str, list[Any]] = {
            "null": [None],
            "boolean": [True, False],
            "float": [0, 1.5],
            "double": [0, 0.5, 3],
            "bytes": ["", "\u00ff"],
            "string": ["", "x"],
            "enum": ["S", "T"],
            "fixed": ["a\u00fe"],
        }
        return self.random.choice(choices.get(name, [0, 7]))

    def value(self, kind: Any) -> Any:
        if isinstance(kind, list):
            member = self.random.choice(kind)
            return None if member == "null" else (fastavro_name(member), self.value(member))
        name = kind["type"] if isinstance(kind, dict) else kind
        if name == "record":
            return {field["name"]: self.value(field["type"]) for field in kind["fields"]}
        if name == "array":
            return [self.value(kind["items"]) for _ in range(self.random.randint(0, 2))]
        if name == "map":
            return {"k": self.value(kind["values"])}
        found = self.default(kind)
        return found.encode("latin-1") if name in {"bytes", "fixed"} else found

    def some(self, fields: list[Any]) -> list[Any]:
        return self.random.sample(fields, self.random.randint(0, len(fields)))


def fastavro_name(kind: Any) -> str:
    """The name that identifies a member of a union."""
    return str(kind.get("name", kind["type"]) if isinstance(kind, dict) else kind)
