"""The staged road on the driver: which copy of a batch counts, and that all of it was written.

A batch's rows are first staged, as a copy in files. Then the ledger names the copy, by an offset
commit that the broker accepts from the group's current member alone. From then on that copy, and no
other, is what is written for the batch, however often the batch is repeated.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from spark_eos.batch.plan import BatchRange
from spark_eos.batch.progress import LEDGER, first_position, progress_range, rows_relayed
from spark_eos.batch.task_report import JobOutcome
from spark_eos.driver.checkpoint_note import STAGED, Note
from spark_eos.driver.committed_offsets import CommittedOffsets
from spark_eos.driver.offset_commits import OffsetCommits
from spark_eos.driver.offset_log import OffsetLog
from spark_eos.errors import CheckpointError, FencedByNewerRunError, OffsetsLostError
from spark_eos.kafka.offset_metadata import StagedBatch

logger = logging.getLogger(__name__)


class BatchCopies(Protocol):
    """Copies of batches in files, made and read by Spark."""

    def stage(self, batch_id: int, buckets: int) -> tuple[str, int]:
        """Runs the batch's frame once and stages its rows.

        Args:
            batch_id: Spark's number of the batch.
            buckets: The most files to make.

        Returns:
            The copy's name, and the number of its rows.
        """

    def drain(self) -> int:
        """Runs the batch's frame for its state alone; returns the number of its rows."""

    def open(self, copy: StagedBatch) -> bool:
        """Sets the copy that the batch's jobs read; returns whether there is such a copy."""

    def sweep(self, batch_id: int) -> None:
        """Removes the copies of earlier batches."""


@dataclass(frozen=True)
class ProgressPartitions:
    """The progress partitions of a run.

    Attributes:
        topic: The progress topic.
        number: Its number of partitions, at least 2.
    """

    topic: str
    number: int


class Staging:
    """Stages the batches of one run, and keeps the ledger.

    Args:
        group_id: The consumer group.
        partitions: The progress partitions.
        offset_log: The query's checkpoint.
        offsets: The group's committed offsets.
        commits: Commits the ledger.
    """

    def __init__(
        self,
        group_id: str,
        partitions: ProgressPartitions,
        offset_log: OffsetLog,
        offsets: CommittedOffsets,
        commits: OffsetCommits,
    ) -> None:
        self._group_id = group_id
        self._partitions = partitions
        self._ledger = (partitions.topic, LEDGER)
        self._offset_log = offset_log
        self._offsets = offsets
        self._commits = commits

    def batch_range(self, batch_id: int) -> BatchRange:
        """The batch's range in the progress partitions.

        Raises:
            WriteError: The batch's number does not fit into an offset.
        """
        topic, number = self._partitions.topic, self._partitions.number
        noted = self._offset_log.note().progress_partitions
        return progress_range(topic, number, batch_id, known=noted or number)

    def accept_reset(self, batch: BatchRange) -> None:
        """Lets the batch be staged as it comes if an operator has set all offsets to 0.

        ``kafka-consumer-groups.sh`` sets no other offset in a topic without records. Called after
        the offsets were read and before any is committed.
        """
        offsets = self._offsets
        if offsets.by_hand >= batch.ends.keys() and not any(
            offsets.committed[place] for place in batch.ends
        ):
            start = first_position(batch.batch_id)
            offsets.committed.update(dict.fromkeys(batch.ends, start))
            logger.warning(
                "group %s: the offsets of %s were set by hand, so batch %d is written as it comes",
                self._group_id,
                self._partitions.topic,
                batch.batch_id,
            )

    def watch_ledger(self) -> None:
        """From now on, whoever reads the offsets notices if a newer run has moved the ledger."""
        self._offsets.ledgers[self._ledger] = (self._offsets.known.staged.get(self._ledger),)

    def find(self, batch: BatchRange, copies: BatchCopies, note: Note) -> StagedBatch | None:
        """Finds and opens the batch's copy that counts, if an earlier run has staged one.

        Args:
            batch: The batch's range.
            copies: The batch's copies.
            note: What to note in the checkpoint before any row is written.

        Returns:
            What the ledger says of the batch; None if it is to be staged.

        Raises:
            CheckpointError: The ledger and the checkpoint do not belong together.
            OffsetsLostError: The ledger was lost, or somebody has set the group's offsets.
            FencedByNewerRunError: A newer run has taken the group over.
        """
        if self._ledger in self._offsets.foreign:
            raise self._foreign(batch.batch_id)
        last = self._offsets.known.staged.get(self._ledger)
        if last is not None:
            range_ = self._offset_log.fingerprint(batch.batch_id)
            self._check_belongs(last, batch.batch_id, range_)
        self._check_positions(last, batch)
        noted = self._offset_log.note().progress_partitions
        # Partitions that are new in this batch are noted at its end: until then they stay new.
        number = noted or self._partitions.number
        self._offset_log.set_note(replace(note, delivery=STAGED, progress_partitions=number))
        if last is None or last.batch != batch.batch_id:
            return None
        logger.info(
            "group %s: batch %d is staged already, in %s; its %d rows are written from there",
            self._group_id,
            batch.batch_id,
            last.copy or "no file",
            last.rows,
        )
        if not copies.open(last):
            raise self._damaged(last, 0)
        return last

    @property
    def buckets(self) -> int:
        """The most files that a copy may have: one for each progress partition but the ledger's."""
        return self._partitions.number - 1

    def commit(self, batch: BatchRange, copies: BatchCopies, copy: str, rows: int) -> StagedBatch:
        """Makes a new copy of the batch the one that counts, and opens it.

        Args:
            batch: The batch's range.
            copies: The batch's copies.
            copy: The copy's name.
            rows: Number of its rows.

        Returns:
            What the ledger says of the batch.

        Raises:
            FencedByNewerRunError: A newer run has taken the group over.
        """
        staged = StagedBatch(
            query=self._offset_log.query_id(),
            batch=batch.batch_id,
            copy=copy if rows else None,
            rows=rows,
            buckets=self.buckets,
            range=self._offset_log.fingerprint(batch.batch_id),
        )
        copies.open(staged)
        self._commits.commit_ledger(batch, self._ledger, staged)
        # Nobody needs earlier copies any more: the group has just accepted this one.
        copies.sweep(batch.batch_id)
        return staged

    def note_partitions(self) -> None:
        """Notes the number of progress partitions, all of which have reached a batch's end."""
        note = self._offset_log.note()
        self._offset_log.set_note(replace(note, progress_partitions=self._partitions.number))

    def lost(self, batch: BatchRange, error: OffsetsLostError) -> OffsetsLostError:
        """What to raise if progress partitions have no offset, although they had one before."""
        found = str(error).partition(": its offset")[0]
        return OffsetsLostError(
            f"{found}: it has expired (offsets.retention.minutes) or was deleted. So whether batch "
            f"{batch.batch_id} was written is not known, and nothing is written now. To continue "
            f"knowingly, {self._write_anew(batch.batch_id)}. Or start over with another group_id "
            "and another checkpoint_location"
        )

    def check_written(self, staged: StagedBatch, outcomes: Sequence[JobOutcome]) -> None:
        """Checks that the tasks have read as many rows as were staged.

        Raises:
            CheckpointError: Some are missing; the batch's end is not committed.
        """
        read = rows_relayed(outcomes)
        if read != staged.rows:
            raise self._damaged(staged, read)

    def compare(self, staged: StagedBatch, rows: int) -> None:
        """Warns if a repeated batch has other rows than its copy, so that its state may, too.

        Args:
            staged: The batch, which is written from its copy.
            rows: Number of rows that it has now.
        """
        if rows != staged.rows:
            logger.warning(
                "group %s: batch %d was computed again for the query's state and had %d rows, but "
                "its copy, which is what is written, has %d: the query is not deterministic, or "
                "its source has other records now (a compacted topic?). So state and output may "
                "differ from here on. If they must not, start over with another group_id and "
                "another checkpoint_location; and let sources keep records for longer than a query "
                "may be stopped (min.compaction.lag.ms)",
                self._group_id,
                staged.batch,
                rows,
                staged.rows,
            )

    def _damaged(self, staged: StagedBatch, read: int) -> CheckpointError:
        return CheckpointError(
            f"batch {staged.batch} of group {self._group_id!r} was staged with {staged.rows} "
            f"rows, and {read} were read from its copy {staged.copy} below "
            "checkpoint_location/spark-eos/staged: files of it were removed or changed. Put them "
            "back; every start writes what is missing. Without them those rows can't be written: "
            "to write the batch anew, those of its rows too that are written already, "
            f"{self._write_anew(staged.batch)}"
        )

    # Checks -----------------------------------------------------------------------------------

    def _check_belongs(self, last: StagedBatch, batch_id: int, range_: str) -> None:
        query = self._offset_log.query_id()
        if last.query != query:
            raise CheckpointError(
                f"group {self._group_id!r} has staged batch {last.batch} of query {last.query}, "
                f"but checkpoint_location {self._offset_log.location!r} belongs to query {query}. "
                "A query that stages its batches can't be continued without its own checkpoint, "
                "which holds its state. Put that checkpoint back, or start over with another "
                "group_id. To use this group with this checkpoint knowingly, "
                f"{self._write_anew(batch_id)}"
            )
        if batch_id == last.batch and range_ != last.range:
            raise CheckpointError(
                f"group {self._group_id!r} has staged batch {batch_id} from other source offsets "
                "than this checkpoint's batch of that number: an older checkpoint was put back, "
                "and planned the batch anew, so rows would be lost or written twice. Put the "
                f"latest checkpoint back; or, to continue knowingly, "
                f"{self._write_anew(batch_id)}"
            )
        if batch_id < last.batch <= self._offset_log.latest():
            # It is no older checkpoint that was put back, which would not have these batches.
            raise FencedByNewerRunError(
                f"another run of group {self._group_id!r} has gone on to batch {last.batch} "
                f"meanwhile, in the same checkpoint_location, and this one began with batch "
                f"{batch_id}: it stops, and has written nothing. See that only one run is active; "
                "the next start goes on from there"
            )
        if batch_id not in (last.batch, last.batch + 1):
            why = (
                "an older checkpoint was put back, and its batches are written already"
                if batch_id < last.batch
                else "batches between them were not written: the sink must be called for every "
                "batch, also for one without rows"
            )
            raise CheckpointError(
                f"group {self._group_id!r} has staged batch {last.batch} last, and the query is "
                f"at batch {batch_id}: {why}. To continue knowingly, "
                f"{self._write_anew(batch_id)}"
            )

    def _check_positions(self, last: StagedBatch | None, batch: BatchRange) -> None:
        start = first_position(batch.batch_id)
        if last is None and self._offsets.committed[self._ledger] != start:
            raise OffsetsLostError(
                f"the ledger of group {self._group_id!r} was lost: the offset of "
                f"{self._ledger[0]}-{self._ledger[1]} is "
                f"{self._offsets.committed[self._ledger]} and names no batch, so whether batch "
                f"{batch.batch_id} was written is not known. To continue knowingly, "
                f"{self._write_anew(batch.batch_id)}"
            )
        behind = sorted(p for p in batch.starts if self._offsets.committed[p] < start)
        if behind:
            topic, index = behind[0]
            raise OffsetsLostError(
                f"group {self._group_id!r} has committed {topic}-{index} up to "
                f"{self._offsets.committed[behind[0]]}, but batch {batch.batch_id} begins at "
                f"{start}: the batch before it is not fully written, or somebody has set the "
                f"group's offsets. To continue without it, {self._write_anew(batch.batch_id)}"
            )
        staged = last is not None and last.batch == batch.batch_id
        ahead = sorted(p for p in batch.ends if self._offsets.committed[p] > start)
        if ahead and not staged:
            # They would be taken for rows of the new copy.
            topic, index = ahead[0]
            raise OffsetsLostError(
                f"group {self._group_id!r} has committed {topic}-{index} up to "
                f"{self._offsets.committed[ahead[0]]}, but its ledger knows no copy of batch "
                f"{batch.batch_id}, which begins at {start}: somebody has set some of the group's "
                f"offsets. To continue knowingly, {self._write_anew(batch.batch_id)}"
            )

    def _foreign(self, batch_id: int) -> OffsetsLostError:
        topic, index = self._ledger
        return OffsetsLostError(
            f"the offset of {topic}-{index}, the ledger of group {self._group_id!r}, has a text "
            "that no run of the query has written: another client has set it, so which copy of "
            f"batch {batch_id} counts is not known, and nothing is written. See who has Read on "
            f"the group. To continue knowingly, {self._write_anew(batch_id)}"
        )

    def _write_anew(self, batch_id: int) -> str:
        return (
            f"set the offsets of all partitions of {self._partitions.topic} to 0 while the query "
            f"is stopped: the query's batch {batch_id} is then written as it comes "
            f"(kafka-consumer-groups.sh --reset-offsets --group {self._group_id} --topic "
            f"{self._partitions.topic} --to-earliest --execute)"
        )
