"""Renews a run's offsets between its batches, since each offset expires by its own age."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from spark_eos.batch.plan import BatchRange
from spark_eos.driver import offset_renewal
from spark_eos.driver.group_deadline import group_deadline
from spark_eos.driver.membership import GroupMembership
from spark_eos.driver.offset_commits import OffsetCommits

logger = logging.getLogger(__name__)

# Seconds for work between two heartbeats, well below a member's session timeout.
_BETWEEN_BEATS: Final = 5.0


class IdleRenewal:
    """Commits the last batch's offsets again when they are an hour old.

    Args:
        group_id: The consumer group.
        membership: The group's members.
        commits: Commits offsets as these.
        group_timeout_ms: Time limit of each call to the group, in milliseconds.
        also: Renews what else expires; must not raise.

    Attributes:
        busy: Held during a batch: its tasks commit offsets, so the driver must not renew them.
        finished: The last batch; None if there is none, or if it failed, so that its tasks may
            still be committing.
    """

    def __init__(
        self,
        group_id: str,
        membership: GroupMembership,
        commits: OffsetCommits,
        group_timeout_ms: int,
        also: Callable[[], None] = lambda: None,
    ) -> None:
        self._also = also
        self._group_id = group_id
        self._membership = membership
        self._commits = commits
        self._group_timeout_ms = group_timeout_ms
        self._renewed: float | None = None
        self.busy = threading.Lock()
        self.finished: BatchRange | None = None

    def renewed(self) -> None:
        """Notes that all offsets are committed just now."""
        self._renewed = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether the offsets are due to be committed again."""
        since = self._renewed
        return since is not None and time.monotonic() - since >= offset_renewal.SECONDS

    def renew_if_due(self) -> None:
        """Renews the offsets if they are due and no batch is in progress."""
        if self.due:
            self.renew()

    def renew(self) -> None:
        """Renews the offsets unless a batch is in progress; whatever fails is only logged."""
        if not self.busy.acquire(blocking=False):
            return
        try:
            batch = self.finished
            if batch is None or self._membership.ended:
                return
            deadline = group_deadline(self._group_timeout_ms, at_most=_BETWEEN_BEATS)
            self._commits.renew(batch, deadline)
            self.renewed()
            self._also()
        except Exception as error:  # noqa: BLE001 - heartbeats must go on
            logger.info("group %s: offsets are not renewed: %s", self._group_id, error)
        finally:
            self.busy.release()
