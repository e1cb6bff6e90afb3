"""The jobs in jobs/, which are no package."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent.parent
# The arguments that every job needs.
GIVEN = [
    *("--bootstrap-servers", "h:1"),
    *("--group-id", "g"),
    *("--source", "a"),
    *("--target", "b"),
    *("--checkpoint-location", "c"),
]


def job(name: str) -> ModuleType:
    """A job's module, by its file's name."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "jobs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
