"""The time limit of calls to a query's group, as ``group_timeout_ms`` sets it."""

import math

from spark_eos._kafka.deadline import Deadline


def group_deadline(group_timeout_ms: int, at_most: float = math.inf) -> Deadline:
    """A deadline that starts now, and names ``group_timeout_ms`` once it is exceeded.

    Example:
        >>> group_deadline(60_000, at_most=5.0).seconds
        5.0
    """
    return Deadline(min(at_most, group_timeout_ms / 1000), "group_timeout_ms")
