"""Counts the calls, files and types of values that one direct batch involves.

``PYTHONPATH=tests:. python tools/figures.py`` writes two batches of a query on its own broker, and
follows the second batch: on the driver, from the sink's call to its report; and in a task, which
runs in this process with similar rows. Calls are the spark_eos frames between two places. A type
counts if the batch creates a value of it.
"""

import dataclasses
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import click

import spark_eos
from spark_eos import ExactlyOnceSink
from spark_eos.testing import EmbeddedKafka, spark_session
from support.flow import Flow
from support.queries import relay
from support.runs import running

PACKAGE: Final = str(Path(spark_eos.__file__).parent)
# Names of the constructors that dataclasses and named tuples generate.
_CONSTRUCTORS: Final = {"__init__", "<lambda>"}


class Counter:
    """Follows a thread's calls from the call of one function until that function returns."""

    def __init__(self, begins: str, batch: int) -> None:
        self._begins = begins
        self._left = batch
        self._first: FrameType | None = None
        self.files: set[str] = set()
        self.types: set[str] = set()
        self.calls: dict[str, int] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Implement the interface of a `sys.setprofile` function."""
        code = frame.f_code
        own = code.co_filename.startswith(PACKAGE)
        if event == "call" and own and _name(code).endswith(self._begins):
            self._left -= 1
            if not self._left:
                self._first = frame
        if self._first is None:
            return
        if event == "return" and frame is self._first:
            self._first = None
        elif event == "call" and own:
            if code.co_name not in {"<module>", "<genexpr>", "<lambda>", "<listcomp>"}:
                self.files.add(code.co_filename)
        elif event == "call" and code.co_filename == "<string>":
            self._note_type(frame)
        if event == "call":
            self._note(f"{frame.f_globals.get('__name__', '')}.{_name(code)}", frame)
        elif event == "c_call":
            self._note(f"{type(argument.__self__).__name__}.{argument.__name__}", frame)

    def _note_type(self, frame: FrameType) -> None:
        """Record a dataclass or named tuple: their generated constructors have no file."""
        if frame.f_code.co_name not in _CONSTRUCTORS:  # a comparison, a hash
            return
        names = frame.f_code.co_varnames
        made = frame.f_locals.get(names[0]) if names else None
        kind = made if isinstance(made, type) else type(made)
        is_value = dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
        if is_value and kind.__module__.startswith("spark_eos"):
            self.types.add(kind.__qualname__)

    def _note(self, name: str, frame: FrameType | None) -> None:
        """Record the lowest number of spark_eos frames that lead to a call."""
        for place in PLACES:
            if place.end in name:
                depth = _frames_from(place.begin, frame)
                if depth:
                    self.calls[place.what] = min(depth, self.calls.get(place.what, depth))


@dataclasses.dataclass(frozen=True)
class Place:
    """A count of spark_eos frames, from one call to another."""

    what: str
    begin: str
    end: str


PLACES: Final = (
    Place(
        "driver: the sink's call to the Spark job", "ExactlyOnceSink.__call__", "DataFrame.collect"
    ),
    Place("task: its entry to produce", "write_task.<locals>.run", "Handle.produce_batch"),
    Place("task: a commit to its request", "Transactions.commit", "Connections.send"),
)


def _name(code: CodeType) -> str:
    # ``co_qualname`` exists since Python 3.11.
    return str(getattr(code, "co_qualname", code.co_name))


def _frames_from(begin: str, frame: FrameType | None) -> int:
    """Return the number of spark_eos frames from a call of ``begin`` on; 0 without such a call."""
    number = 0
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            number += 1
            if _name(code).endswith(begin):
                return number
        frame = frame.f_back
    return 0


def followed(counter: Counter, call: Callable[[], object]) -> None:
    """Make a call while the counter follows it."""
    sys.setprofile(counter)
    try:
        call()
    finally:
        sys.setprofile(None)


def on_the_driver(broker: EmbeddedKafka, directory: str) -> Counter:
    """Follow a query's second batch on classic Spark, from the sink's call to its report."""
    counter = Counter("ExactlyOnceSink.__call__", batch=2)
    flow = Flow(broker, f"{directory}/checkpoint", f"{directory}/workers")
    sink = ExactlyOnceSink(**flow.options())
    spark = spark_session("figures")
    writer = sink.write(relay(sink.read(spark, subscribe=flow.source)))
    query = writer.foreachBatch(
        lambda batch, number: followed(counter, lambda: sink(batch, number))
    ).start()
    for _ in range(2):
        flow.produce(range(10))
        query.processAllAvailable()
    query.stop()
    sink.close()
    spark.stop()
    return counter


def in_a_task(broker: EmbeddedKafka, directory: str) -> Counter:
    """Follow the second batch's task, which runs in this process."""
    counter = Counter("write_task.<locals>.run", batch=3)
    flow = Flow(broker, f"{directory}/checkpoint", f"{directory}/workers")
    with running(flow) as runs:
        runs.batch(5, 5)
        followed(counter, lambda: runs.batch(10, 10))
    return counter


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as directory, EmbeddedKafka() as broker:
        found = [on_the_driver(broker, directory), in_a_task(broker, directory)]
    for place in PLACES:
        depth = min((one.calls[place.what] for one in found if place.what in one.calls), default=0)
        click.echo(f"{place.what}: {depth} calls")
    files = {Path(name).relative_to(PACKAGE) for one in found for name in one.files}
    types = {name for one in found for name in one.types}
    click.echo(f"files: {len(files)}")
    click.echo(f"types of values: {len(types)}")
    if "--list" in sys.argv:
        click.echo("\n".join(sorted(map(str, files))))
        click.echo("\n".join(sorted(types)))


if __name__ == "__main__":
    main()
