"""Names of staged copies, which are directories: no other name is ever made a path."""

import re
import uuid
from typing import Final

_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,9})-[0-9a-f]{8}")


def new_copy_name(batch_id: int) -> str:
    """A name for a copy of a batch that no other copy has."""
    return f"{batch_id}-{uuid.uuid4().hex[:8]}"


def batch_of_copy(name: str) -> int | None:
    """The batch that a copy is of, by its name; None for a name that `new_copy_name` never makes.

    Example:
        >>> batch_of_copy(new_copy_name(7))
        7
        >>> batch_of_copy("../../payroll")
    """
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])
