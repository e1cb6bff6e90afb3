"""Publishes a staged query's positions in its sources, so that Kafka's own tools show its lag.

For monitoring only, as each offset's text says: the query's progress is Spark's checkpoint and the
staged commit, and whoever reads the group's offsets to decide anything leaves these out.
"""

import logging
import time
from collections.abc import Iterable
from typing import Final

from spark_eos._batch.plan import BatchRange, Positions
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.offset_metadata import CommittedOffset, position_metadata
from spark_eos._progress import offsets
from spark_eos._progress.committing import OffsetCommits
from spark_eos.acls import query_acls
from spark_eos.errors import AuthorizationError, SparkEosError

logger = logging.getLogger(__name__)

# Seconds that monitoring may delay a batch.
_AT_MOST: Final = 5.0


class SourcePositions:
    """Publishes one run's positions in its sources."""

    def __init__(
        self, connections: Connections, settings: WriterSettings, commits: OffsetCommits
    ) -> None:
        self._connections = connections
        self._settings = settings
        self._commits = commits
        self._text = ""
        self._published: Positions = {}
        self._all_published = -offsets.RENEWED_AFTER
        self._failed = False

    def publish(self, progress_topic: str, ranges: Iterable[BatchRange]) -> None:
        """Publishes where a finished batch ends in its sources; whatever fails is only logged."""
        self._text = position_metadata(progress_topic)
        # A partition that two sources have is as far as the one that lags behind.
        ends: Positions = {}
        for one in ranges:
            for partition, end in one.ends.items():
                ends[partition] = min(end, ends.get(partition, end))
        # Each offset expires by its own age.
        renewed = time.monotonic() - self._all_published >= offsets.RENEWED_AFTER
        moved = {p: end for p, end in ends.items() if renewed or self._published.get(p) != end}
        if not self._publish(moved):
            return
        self._published = ends
        if renewed:
            self._all_published = time.monotonic()

    def renew(self) -> None:
        """Publishes all positions again between batches, so that none expires."""
        if self._publish(self._published):
            self._all_published = time.monotonic()

    def _publish(self, positions: Positions) -> bool:
        try:
            if positions:
                self._commit(positions)
        except SparkEosError as error:
            self._log(error)
            return False
        return True

    def _commit(self, positions: Positions) -> None:
        found = {p: CommittedOffset(at, self._text) for p, at in positions.items()}
        deadline = self._settings.group_deadline(at_most=_AT_MOST)
        member = self._commits.any_member()
        if member is None:
            return
        # An older position that arrives late shows a larger lag for a batch, and no more.
        codes = self._commits.send(member, found, deadline, lambda: None)
        if refused := {code for code in codes.values() if code}:
            topics = {topic for (topic, _), code in codes.items() if code}
            group_id, prefix = self._settings.group_id, self._settings.id_prefix
            raise self._connections.refusal(
                f"positions of group {group_id!r} in its sources",
                min(refused),
                query_acls(group_id, prefix, topics, []),
            )

    def _log(self, error: SparkEosError) -> None:
        if self._failed:
            return
        self._failed = True
        level = logging.WARNING if isinstance(error, AuthorizationError) else logging.INFO
        logger.log(
            level,
            "group %s: Kafka's tools don't show the query's lag, since its positions can't be "
            "published; the query itself does not need them: %s",
            self._settings.group_id,
            error,
        )
