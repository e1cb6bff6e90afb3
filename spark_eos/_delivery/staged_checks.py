"""Checks that a checkpoint and a group's staged commit belong together."""

from collections.abc import Collection

from spark_eos._checkpoint.marker import DIRECT, STAGED
from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._client.commands import Group
from spark_eos._delivery.ownership import changed_delivery
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.progress_topic import COMMIT_PARTITION, first_position
from spark_eos._kafka.stored_text import Owner, StagedBatch
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._worker.plan import BatchRange
from spark_eos.errors import CheckpointError, FencedByNewerRunError, OffsetsLostError


class StagedChecks:
    """The checks of a group's staged offsets."""

    def __init__(self, group: Group, topic: str) -> None:
        self._group = group
        self._topic = topic
        self._commit_partition = TopicPartition(topic, COMMIT_PARTITION)

    def lost(self, batch_id: int, error: OffsetsLostError) -> OffsetsLostError:
        """Return the error for progress partitions that have lost their offsets."""
        reason = error.text.partition(": its offset")[0]
        return OffsetsLostError(
            f"{reason}: it has expired (offsets.retention.minutes) or was deleted. So it is not "
            f"known whether batch {batch_id} was written, and nothing is written now. To continue "
            f"anyway, {self._write_again(batch_id)}. Or start over with another group_id "
            "and another checkpoint_location"
        )

    def damaged(self, staged: StagedBatch, read: int) -> CheckpointError:
        """Return the error for files that don't have the number of rows that were staged."""
        return CheckpointError(
            f"batch {staged.batch} of group {self._group.id!r} was staged with {staged.rows} "
            f"rows, and {read} were read from its copy {staged.directory} below "
            "checkpoint_location/spark-eos/staged: files of it were removed or changed. Restore "
            "them: every start writes the missing rows. Without the files, those rows can't be "
            "written. To write the whole batch again, including its rows that are already written, "
            f"{self._write_again(staged.batch)}"
        )

    def removed(self, staged: StagedBatch) -> FencedByNewerRunError:
        """Return the error for files that are gone before their commit."""
        return FencedByNewerRunError(
            f"the copy {staged.directory} that this run has staged for batch {staged.batch} is "
            f"gone: a newer run of group {self._group.id!r}, which removes the copies of runs that "
            "it has fenced, was active in the meantime, or somebody has removed the copy. This "
            "run stops, and has written nothing of the batch; the next start continues from there"
        )

    def check_topic(self, known: KnownPartitions, why: str) -> None:
        """Refuse a group whose progress is, or may be, in another topic."""
        if topics := sorted({topic for topic, _ in known.staged} - {self._topic}):
            raise CheckpointError(
                f"the group's staged batches are recorded in topic {topics[0]!r}, but "
                f"progress_topic is {self._topic!r}: set progress_topic={topics[0]!r}; or, to "
                "start over deliberately, use another group_id"
            )
        if other := sorted({topic for topic, _ in known.partitions} - {self._topic}):
            raise changed_delivery(DIRECT, STAGED, why, perhaps_staged=other)

    def check_belongs(
        self, last: StagedBatch, batch_id: int, log: OffsetLog, owners: Collection[Owner]
    ) -> None:
        """Refuse a batch that does not follow the last staged batch."""
        query = log.query_id()
        if last.query != query:
            targets = {o.written_to for o in owners if last.query.startswith(o.query)}
            wrote = f", which writes to {min(targets)}" if targets else ""
            raise CheckpointError(
                f"group {self._group.id!r} has staged batch {last.batch} of query {last.query}"
                f"{wrote}, but checkpoint_location {log.location!r} belongs to query {query}. "
                "A query that stages its batches can't be continued without its own checkpoint, "
                "which holds its state. Restore that checkpoint, or start over with another "
                "group_id and another checkpoint_location. To use this group with this checkpoint "
                f"anyway, {self._write_again(batch_id)}"
            )
        if batch_id == last.batch and log.fingerprint(batch_id) != last.fingerprint:
            raise CheckpointError(
                f"group {self._group.id!r} has staged batch {batch_id} from other source offsets "
                f"than batch {batch_id} of this checkpoint: an older checkpoint was restored, "
                "and the batch was planned again, so rows would be lost or written twice. Restore "
                f"the latest checkpoint; or, to continue anyway, "
                f"{self._write_again(batch_id)}"
            )
        if batch_id < last.batch <= (log.begun or 0):
            # The checkpoint is not an older one that was restored: such a checkpoint would lack
            # these batches.
            raise FencedByNewerRunError(
                f"another run of group {self._group.id!r} has gone on to batch {last.batch} "
                f"meanwhile, in the same checkpoint_location. This run, which began with batch "
                f"{batch_id}, stops, and has written nothing. Make sure that only one run is "
                "active; the next start continues from there"
            )
        if batch_id not in (last.batch, last.batch + 1):
            why = (
                "an older checkpoint was restored, and its batches are already written"
                if batch_id < last.batch
                else "batches between them were not written: the sink must be called for every "
                "batch, even for one without rows"
            )
            raise CheckpointError(
                f"group {self._group.id!r} has staged batch {last.batch} last, and the query is "
                f"at batch {batch_id}: {why}. To continue anyway, "
                f"{self._write_again(batch_id)}"
            )

    def check_positions(
        self, last: StagedBatch | None, batch: BatchRange, committed: Positions
    ) -> None:
        """Refuse offsets that no run of the query can have committed."""
        start = first_position(batch.batch_id)
        if last is None and committed[self._commit_partition] != start:
            raise OffsetsLostError(
                f"the staged commit of group {self._group.id!r} was lost: the offset of "
                f"{self._commit_partition} is {committed[self._commit_partition]} and names no "
                f"batch, so it is not known whether batch {batch.batch_id} was written. To "
                f"continue anyway, {self._write_again(batch.batch_id)}"
            )
        behind = sorted(p for p in batch.starts if committed[p] < start)
        if behind:
            raise OffsetsLostError(
                f"group {self._group.id!r} has committed {behind[0]} up to "
                f"{committed[behind[0]]}, but batch {batch.batch_id} begins at "
                f"{start}: the batch before it is not fully written, or somebody has set the "
                f"group's offsets. To continue without it, {self._write_again(batch.batch_id)}"
            )
        staged = last is not None and last.batch == batch.batch_id
        ahead = sorted(p for p in batch.ends if committed[p] > start)
        if ahead and not staged:
            # Rows of the new copy below these offsets would count as written.
            raise OffsetsLostError(
                f"group {self._group.id!r} has committed {ahead[0]} up to "
                f"{committed[ahead[0]]}, but its staged commit names no copy of batch "
                f"{batch.batch_id}, which begins at {start}: somebody has set some of the group's "
                f"offsets. To continue anyway, {self._write_again(batch.batch_id)}"
            )

    def foreign(self, batch_id: int) -> OffsetsLostError:
        """Return the error for a staged commit that another client has replaced."""
        return OffsetsLostError(
            f"the offset of {self._commit_partition}, the staged commit of group "
            f"{self._group.id!r}, has a text that no run of the query has written: another "
            "client has set it, so it is not known which copy "
            f"of batch {batch_id} counts, and nothing is written. Check who has Read on "
            f"the group. To continue anyway, {self._write_again(batch_id)}"
        )

    def _write_again(self, batch_id: int) -> str:
        reset = ("--reset-offsets", "--topic", self._topic, "--to-earliest", "--execute")
        return (
            f"set the offsets of all partitions of {self._topic} to 0 while the query "
            f"is stopped: the query's batch {batch_id} is then written as it is now "
            f"({self._group.tool(*reset)})"
        )
