"""The examples in docstrings do what they show."""

import doctest
import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import spark_eos
import spark_eos.schemas
import spark_eos.testing
import spark_eos.verify

_ROOT = Path(spark_eos.__file__).parent.parent
_MODULES = [
    ".".join(path.relative_to(_ROOT).with_suffix("").parts)
    for package in ("spark_eos", "demo")
    for path in sorted((_ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", _MODULES)
def test_examples(name: str) -> None:
    found = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize(
    "module", [spark_eos, spark_eos.schemas, spark_eos.testing, spark_eos.verify]
)
def test_the_api_page_shows_examples_as_code(module: ModuleType) -> None:
    # Which it does below "Examples:", of Google's two titles.
    for name in module.__all__:
        assert "\nExample:\n" not in inspect.cleandoc(getattr(module, name).__doc__ or ""), name
