"""What Spark's web interface says about a job."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, cast

from pyspark import SparkContext

_DESCRIPTION: Final = "spark.job.description"


@contextmanager
def described(context: SparkContext, text: str) -> Iterator[None]:
    """Lets the jobs that this thread starts be described by a text, before Spark's own words.

    Spark's description of a streaming query's jobs has the query's name and ids; it is what it was
    once the block is left.
    """
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text if before is None else f"{text}\n{before}")
    try:
        yield
    finally:
        # None removes it.
        context.setLocalProperty(_DESCRIPTION, cast("str", before))
