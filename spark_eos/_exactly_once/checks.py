"""Checks of the group's offsets after each read; pure functions."""

from collections.abc import Collection, Mapping

from spark_eos._client.commands import Group
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.stored_text import StagedBatch, SuspectRange
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._worker.plan import Partitions
from spark_eos._worker.sources import Sources
from spark_eos.errors import (
    FencedByNewerRunError,
    OffsetsLostError,
)

Expected = Mapping[TopicPartition, Collection[StagedBatch | None]]


_RUN_STOPS = "This run stops, and commits nothing more"


def check_not_moved_back(
    group_id: str, sources: Sources, before: Positions, now: Positions, partitions: Partitions
) -> None:
    """Refuse committed offsets that are lower than when this run last read them."""
    for partition, offset in before.items():
        if partition in partitions and now.get(partition, -1) < offset:
            raise OffsetsLostError(
                f"group {group_id!r} had committed {sources.name(partition)} up to {offset} and "
                f"now has {now.get(partition, 'no offset')}: somebody has set or deleted the "
                "group's offsets while the query was running"
            )


def check_not_moved_on(
    group: Group,
    sources: Sources,
    before: Positions,
    now: Positions,
    set_by_others: Partitions,
) -> None:
    """Refuse offsets that a client other than spark-eos has moved forward."""
    for partition in sorted(before.keys() & set_by_others):
        offset, current = before[partition], now[partition]
        if current > offset:
            raise OffsetsLostError(
                f"group {group.id!r} had committed {sources.name(partition)} up to {offset} "
                f"and now has {current}: a consumer other than spark-eos has used the group while "
                f"the query was running, and offsets {offset} to {current - 1} are not written. To "
                f"write them, set the group's offset back to {offset} while the query is stopped "
                f"({sources.how_to_set(group, {partition: 'N'})}); otherwise the next start "
                "continues after them"
            )


def check_same_pairs(group_id: str, known: KnownPartitions, now: KnownPartitions) -> None:
    """Refuse progress partitions that a newer run has paired with another source partition."""
    for partition, source in now.sources.items():
        if known.sources.get(partition, source) != source:
            raise FencedByNewerRunError(
                f"group {group_id!r} has another source for {partition}, {source}: a newer run "
                f"has used the group in the meantime. {_RUN_STOPS}"
            )


def check_same_staged(group_id: str, expected: Expected, now: KnownPartitions) -> None:
    """Refuse a staged commit that this run has not made."""
    for partition, admissible in expected.items():
        staged = now.staged.get(partition)
        if staged not in admissible:
            what = "has no staged commit any more" if staged is None else f"has staged {staged}"
            raise FencedByNewerRunError(
                f"group {group_id!r} {what}: a newer run has used the group in the meantime, or "
                f"somebody has set the group's offsets. {_RUN_STOPS}"
            )


def check_same_target(group_id: str, known: KnownPartitions, now: KnownPartitions) -> None:
    """Refuse offsets that a query with another target has committed since this run's start."""
    own = known.owner
    others = (owner for owners in now.owners.values() for owner in owners)
    for other in others:
        if own is not None and other.query != own.query and other.target != own.target:
            raise FencedByNewerRunError(
                f"group {group_id!r} has offsets of query {other.query}, which writes to "
                f"{other.written_to}: the query has used the group in the meantime. {_RUN_STOPS}"
            )


def check_no_suspects(
    group: Group, sources: Sources, known: KnownPartitions, partitions: Partitions
) -> None:
    """Refuse ranges that an earlier run has marked as possibly incomplete."""
    suspects = {p: suspect for p, suspect in sorted(known.suspects.items()) if p in partitions}
    if not suspects:
        return
    ranges = (
        f"offsets {s.first} to {s.after - 1} of {sources.name(p)}" for p, s in suspects.items()
    )
    again = (f"{sources.name(p)} to {s.first}" for p, s in suspects.items())
    after = (f"{sources.name(p)} to {s.after}" for p, s in suspects.items())
    raise OffsetsLostError(
        f"rows of {' and '.join(ranges)} may be missing: an earlier run of group {group.id!r} got "
        "these rows out of order or in two tasks, after it had committed some of them. Find out "
        "which rows are missing (spark-eos verify). Then set the group's offsets while the query "
        f"is stopped: {', '.join(again)} to write all these rows again, or {', '.join(after)} to "
        f"continue after them ({sources.how_to_set(group, dict.fromkeys(suspects, 'N'))}), and "
        "start with an empty checkpoint_location"
    )


def suspect_ranges(
    starts: Positions, seen: Positions, committed: Positions
) -> dict[TopicPartition, SuspectRange]:
    """Return a batch's ranges that may lack rows although the committed offsets are past them."""
    # With two tasks, the later commit may have set a lower offset than the earlier commit.
    after = {p: max(offset, committed.get(p, 0)) for p, offset in seen.items()}
    return {
        p: SuspectRange(starts.get(p, 0), end) for p, end in after.items() if end > starts.get(p, 0)
    }
