"""How far a query that stages its batches has come, read from its group's offsets; no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass

from spark_eos.batch.progress import LEDGER, first_position
from spark_eos.kafka.offset_metadata import CommittedOffset, KnownPartitions, StagedBatch

Committed = Mapping[tuple[str, int], CommittedOffset]


@dataclass(frozen=True)
class StagedStatus:
    """The last staged batch of a query.

    Attributes:
        topic: The progress topic.
        batch: What the ledger tells of the batch.
        buckets_written: Number of the batch's buckets of which all rows are written and committed;
            all of them if the batch has no rows.
    """

    topic: str
    batch: StagedBatch
    buckets_written: int

    @property
    def written(self) -> bool:
        """Whether all rows of the batch are written and committed."""
        return self.buckets_written >= self.batch.buckets


def progress_topics(committed: Committed) -> set[str]:
    """Finds the progress topics among the topics of a group's offsets, by the ledgers' metadata.

    Args:
        committed: The group's offsets by (topic, partition).
    """
    return {topic for topic, _ in _ledgers(committed)}


def staged_status(committed: Committed) -> StagedStatus | None:
    """Finds the last staged batch.

    Args:
        committed: The group's offsets by (topic, partition).

    Returns:
        The last staged batch, of the ledger with the latest one if there are several; None if the
        group has no ledger.

    Example:
        >>> batch = StagedBatch("5f1c", 7, "7-ab12cd34", 1_000, 2, "00d1e4a77b3c9f52")
        >>> ledger = KnownPartitions(staged={("progress", 0): batch}).texts([("progress", 0)])
        >>> found = staged_status(
        ...     {
        ...         ("progress", 0): CommittedOffset(7, ledger["progress", 0]),
        ...         ("progress", 1): CommittedOffset(8 << 32, ""),
        ...         ("progress", 2): CommittedOffset(7 << 32 | 250, ""),
        ...     }
        ... )
        >>> (found.buckets_written, found.written)
        (1, False)
    """
    ledgers = _ledgers(committed)
    if not ledgers:
        return None
    (topic, _), batch = max(ledgers.items(), key=lambda item: (item[1].batch, item[0]))
    if batch.copy is None:
        # No transaction moves the offsets of its buckets.
        return StagedStatus(topic, batch, batch.buckets)
    end = first_position(batch.batch + 1)
    written = sum(
        name == topic and LEDGER < partition <= batch.buckets and one.offset >= end
        for (name, partition), one in committed.items()
    )
    return StagedStatus(topic, batch, written)


def _ledgers(committed: Committed) -> dict[tuple[str, int], StagedBatch]:
    staged = KnownPartitions.of(committed).staged
    return {place: batch for place, batch in staged.items() if place[1] == LEDGER}
