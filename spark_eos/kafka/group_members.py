"""Which of a group's live members are spark-eos', by their instance ids."""

from spark_eos.errors import ForeignMemberError
from spark_eos.kafka import groups
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline

INSTANCE_PREFIX = "spark-eos-"
RENEWAL_INSTANCE = f"{INSTANCE_PREFIX}renewal"
"""Who renews offsets while the group has no run, for some milliseconds; a run passes over it."""


def own_group(wire: Wire, group_id: str, deadline: Deadline) -> groups.DescribedGroup:
    """The group as it is now; all its live members must be spark-eos'.

    Raises:
        ForeignMemberError: One is not; the error names its client id and host.
    """
    group = groups.describe_group(wire, group_id, deadline)
    for found in group.members:
        if found.epoch is None or not (found.instance_id or "").startswith(INSTANCE_PREFIX):
            raise ForeignMemberError(
                f"group {group_id!r} has a live member that is not spark-eos': {found}. Only "
                "spark-eos may consume with this group, or records are lost: stop that "
                "consumer, or give the query a group_id of its own"
            )
    return group
