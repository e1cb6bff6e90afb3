"""The description of a job in Spark's web interface."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, cast

from pyspark import SparkContext

_DESCRIPTION: Final = "spark.job.description"


@contextmanager
def described(context: SparkContext, text: str) -> Iterator[None]:
    """Puts a text before Spark's own description of the jobs that this thread starts.

    Spark's description of a streaming query's jobs has the query's name and ids. It is restored
    at the end of the block.
    """
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text if before is None else f"{text}\n{before}")
    try:
        yield
    finally:
        # None removes it.
        context.setLocalProperty(_DESCRIPTION, cast("str", before))
