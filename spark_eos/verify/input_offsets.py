"""How far a query has come in its inputs, by its group's offsets of the inputs themselves."""

from collections.abc import Mapping
from dataclasses import dataclass

from spark_eos.errors import VerificationError
from spark_eos.verify.group_offsets import GroupOffsets
from spark_eos.verify.places import Places


@dataclass(frozen=True)
class InputOffsets:
    """What a group's offsets say about the inputs.

    Attributes:
        committed: Next offset to read, by input place; without places of which none is committed.
        unstable: ``topic:partition`` of the group's partitions whose offset an open transaction
            was about to change until the timeout.

    Example:
        >>> InputOffsets({0: 120}).committed[0]
        120
    """

    committed: Mapping[int, int]
    unstable: tuple[str, ...] = ()


class DirectOffsets:
    """Reads a group's offsets of the inputs, which are in the group's cluster.

    Args:
        group: The group's offsets.
        places: The partitions.
    """

    def __init__(self, group: GroupOffsets, places: Places) -> None:
        self._group = group
        self._places = places

    def read(self, *, stable: bool) -> InputOffsets:
        """Reads the offsets.

        Args:
            stable: Whether to wait until no open transaction is about to change one.

        Raises:
            DeadlineExceededError: The coordinator does not answer in time.
            VerificationError: The offsets can't be read.
        """
        numbers = self._places.numbers(self._places.inputs)
        found, unstable = self._group.committed(numbers, stable=stable)
        return InputOffsets(
            {numbers[partition]: stored.offset for partition, stored in found.items()},
            tuple(self._places.name(place) for place in sorted(map(numbers.__getitem__, unstable))),
        )

    def nothing(self) -> VerificationError:
        """The error of a group without an offset of any input."""
        return VerificationError(
            f"group {self._group.group_id!r} has no committed offset in any input topic: there is "
            "nothing to judge; check --group-id and --input"
        )
