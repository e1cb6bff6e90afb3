"""Errors that another process raises, told from texts in which a record may say anything.

Spark passes on an exception of a task, or of Connect's process beside the server, only as a part of
its own text, together with what functions of the user raise: that may quote records. An error of
ours therefore ends with a signature, of which the driver alone knows the random part beforehand.
"""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark import TaskContext

from spark_eos import errors
from spark_eos.errors import SparkEosError

ERRORS_CARRIED: Final = "spark-eos-errors-carried"
"""The tag of jobs that make dead letters of the errors in ``source``."""

_TAGS: Final = "spark.job.tags"
_TAG: Final = "spark-eos-signature-"
_TAGGED: Final = re.compile(rf"{_TAG}([0-9a-f]+)")


def new_signature() -> str:
    return secrets.token_hex(8)


def tag_of(signature: str) -> str:
    """The tag of jobs whose tasks are to sign their errors."""
    # Tags are of one job, also on Spark Connect, where two queries may share a session's settings.
    return f"{_TAG}{signature}"


def job_tags() -> str:
    """Return the tags of this task's job as one text; Connect adds more around each of them."""
    context = TaskContext.get()
    return (context and context.getLocalProperty(_TAGS)) or ""


@contextmanager
def signing_in_task() -> Iterator[None]:
    """Sign an error of ours if the job's driver is to recognize it."""
    try:
        yield
    except SparkEosError as error:
        if match := _TAGGED.search(job_tags()):
            sign(error, match[1])
        raise


def sign(error: SparkEosError, signature: str) -> None:
    """Add a signature to an error's text: the text's length and the error's class."""
    text = error.text
    error.args = (f"{text} [{signature} {type(error).__name__} {len(text)}]",)


def signed_error(text: str, signature: str) -> SparkEosError | None:
    """Return the first error in a text that has this signature.

    Example:
        >>> error = errors.WriteError("no such partition")
        >>> sign(error, "5d10")
        >>> signed_error(f"Job aborted: {error}, and more", "5d10")
        WriteError('no such partition')
    """
    match = re.search(rf" ?\[{signature} (\w+) (\d+)\]", text)
    if match is None:
        return None
    kind = vars(errors).get(match[1])
    if not (isinstance(kind, type) and issubclass(kind, SparkEosError)):
        kind = SparkEosError
    return kind(text[max(0, match.start() - int(match[2])) : match.start()])
