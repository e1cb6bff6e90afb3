"""The steps at a query's end that the sink's own tasks take, so that Spark need not run them."""

# Spark runs each mapInArrow separately: it converts all rows to Arrow, sends them to a Python
# process, and reads the result back. A task of the sink receives the rows anyway.

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from spark_eos._spark.flat_source import with_source
from spark_eos._worker.arrow_columns import Function


class Step(Protocol):
    """A function for ``mapInArrow`` whose result has the same rows in the same order.

    In a task of the sink, it gets only the columns that the sink writes, and ``source``.
    """

    def __call__(self, batches: Iterator[pa.RecordBatch], /) -> Iterator[pa.RecordBatch]: ...

    def within_task(self, batches: Iterator[pa.RecordBatch], /) -> Iterator[pa.RecordBatch]:
        """Do the same within the task of another function."""

    def schema(self, before: T.StructType, /) -> T.StructType:
        """Return the columns that the step makes from other columns."""


@dataclass(frozen=True)
class FinalSteps:
    """The last steps of a query, in their order; empty if Spark runs all of them."""

    steps: tuple[Step, ...] = ()

    def schema(self, before: T.StructType) -> T.StructType:
        for step in self.steps:
            before = step.schema(before)
        return before

    @property
    def functions(self) -> list[Function]:
        """The steps as functions that a task calls on its batches."""
        return [step.within_task for step in self.steps]

    def applied_by_spark(self, frame: DataFrame) -> DataFrame:
        """Return the frame with all steps added to Spark's plan."""
        for step in self.steps:
            frame = with_source(frame)
            frame = frame.mapInArrow(step, step.schema(frame.schema))
        return frame


NO_STEPS: Final = FinalSteps()

# A frame that a step has made, with the frame before the step.
_MADE: Final[WeakKeyDictionary[DataFrame, tuple[DataFrame, Step]]] = WeakKeyDictionary()


def with_step(frame: DataFrame, step: Step) -> DataFrame:
    """Return the frame that a step makes; `without_final_steps` can then undo the step."""
    made = FinalSteps((step,)).applied_by_spark(frame)
    _MADE[made] = frame, step
    return made


def without_final_steps(frame: DataFrame) -> tuple[DataFrame, FinalSteps]:
    """Return the frame before the steps that were added last, and the steps."""
    steps: list[Step] = []
    while (made := _MADE.get(frame)) is not None:
        frame, step = made
        steps.insert(0, step)
    return frame, FinalSteps(tuple(steps))
