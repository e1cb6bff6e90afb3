"""Tells spark-eos members of a group from others, by their instance ids."""

from spark_eos._kafka import groups
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos.errors import ForeignMemberError

INSTANCE_PREFIX = "spark-eos-"
RENEWAL_INSTANCE = f"{INSTANCE_PREFIX}renewal"
"""Instance id that renews offsets, for milliseconds, while no query runs; queries ignore it."""


def own_group(connections: Connections, group_id: str, deadline: Deadline) -> groups.DescribedGroup:
    """Describes a group whose live members must all belong to spark-eos."""
    group = groups.describe_group(connections, group_id, deadline)
    for found in group.members:
        if found.epoch is None or not (found.instance_id or "").startswith(INSTANCE_PREFIX):
            raise ForeignMemberError(
                f"group {group_id!r} has a live member that is not spark-eos': {found}. Only "
                "spark-eos may consume with this group, or records are lost: stop that "
                "consumer, or give the query a group_id of its own"
            )
    return group
