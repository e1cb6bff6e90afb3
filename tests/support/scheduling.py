"""Assigns test modules to processes, for `make test`."""

import functools
from pathlib import Path
from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_ROOT: Final = Path(__file__).parents[2]
_WITH_SPARK: Final = 3
# Modules that share services with a slow start: brokers with security, a schema registry.
_TOGETHER: Final = ("tests/integration/security/", "tests/integration/spark/test_schema")


class SparkInSomeProcesses(LoadScopeScheduling):  # type: ignore[misc]
    """Assigns modules to free processes; modules that use Spark only to the first three.

    Spark takes seconds to start, and minutes to warm up. These processes run modules that use
    Spark first, then help with the other modules.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return next((one for one in _TOGETHER if module.startswith(one)), module)

    def _suited(self, node: Any) -> str | None:
        """The next module for a process, if any."""
        first = {_needs_spark(scope): scope for scope in reversed(self.workqueue)}
        with_spark = node in self.nodes[:_WITH_SPARK] and first.get(True)
        return with_spark or first.get(False)

    def _assign_work_unit(self, node: Any) -> None:
        if scope := self._suited(node):
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        if self._suited(node) or node.shutting_down:
            super()._reschedule(node)
        else:
            node.shutdown()


@functools.cache
def _needs_spark(scope: str) -> bool:
    return scope in _TOGETHER or "SparkSession" in (_ROOT / scope).read_text(encoding="utf-8")
