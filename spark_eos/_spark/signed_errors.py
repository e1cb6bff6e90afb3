"""Recognizes our own errors in texts from other processes, which may also quote records.

Spark passes on an exception of a task, or of Connect's process beside the server, only as part of
its own text. The text may also contain exceptions of the user's functions, which may quote records.
Our errors therefore end with a signature whose random part only the driver knows in advance.
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
"""The tag of jobs that turn errors in ``source`` into dead letters."""

_TAGS: Final = "spark.job.tags"
_TAG: Final = "spark-eos-signature-"
_TAGGED: Final = re.compile(rf"{_TAG}([0-9a-f]+)")


def new_signature() -> str:
    return secrets.token_hex(8)


def tag_of(signature: str) -> str:
    """Return the tag of jobs whose tasks sign their errors."""
    # A tag applies to one job, even on Spark Connect, where two queries may share a session.
    return f"{_TAG}{signature}"


def job_tags() -> str:
    """Return the tags of this task's job as one text; Connect adds text around each tag."""
    context = TaskContext.get()
    return (context and context.getLocalProperty(_TAGS)) or ""


@contextmanager
def signing_in_task() -> Iterator[None]:
    """Sign our errors if the job's tags ask for it, so that the driver recognizes them."""
    try:
        yield
    except SparkEosError as error:
        if match := _TAGGED.search(job_tags()):
            sign(error, match[1])
        raise


def sign(error: SparkEosError, signature: str) -> None:
    """Append a signature to an error's text, with the error's class and the text's length."""
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
