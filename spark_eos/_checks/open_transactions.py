"""Finds and ends the transactions that a query's earlier runs and killed tasks left open."""

import logging
import time
from collections.abc import Collection
from typing import Final

from spark_eos._client.printable import printable
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.groups import RENEWAL_INSTANCE, describe_group
from spark_eos._kafka.open_transactions import open_transactions
from spark_eos._kafka.silent_brokers import SilentBrokers, does_not_answer
from spark_eos._kafka.transactional_ids import id_pattern
from spark_eos._kafka.transactions import fence_producer
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.acls import Operation, transactional_ids
from spark_eos.errors import AuthorizationError, DeadlineExceededError, SparkEosError, warn

logger = logging.getLogger(__name__)

ABORT_INTERVAL: Final = 10
"""Seconds between the brokers' own checks for transactions past their timeout, by default
(``transaction.abort.timed.out.transaction.cleanup.interval.ms``)."""

# Seconds between checks for transactions that cancelled tasks left open.
_SWEEP_INTERVAL: Final = 0.25
# Seconds that each such check may take.
_SWEEP_TIMEOUT: Final = 5.0
# Seconds to wait for a transaction's coordinator, which may be down.
_END_TIMEOUT: Final = 10.0


class OpenTransactions:
    """The query's open transactions, to be ended once their writers have been fenced."""

    # A fenced writer can't add offsets to its open transaction, and the offsets that are already in
    # the transaction aren't read before it ends. So a transaction that can't be found or ended here
    # costs only time: it is logged, and left to the brokers.

    def __init__(self, connections: Connections, settings: WriterSettings) -> None:
        self._connections = connections
        self._settings = settings
        self._warned = False
        self._silent_brokers: set[str] = set()

    def names(self, deadline: Deadline | None = None) -> list[str]:
        """Return the query's transactional ids that have an open transaction."""
        pattern = id_pattern(self._settings.transactions.id_prefix, self._settings.group_id)
        silent = SilentBrokers(self._connections)
        transactions = open_transactions(
            self._connections, pattern, deadline or self._settings.group_deadline(), silent
        )
        for name in silent.names:
            self._warn_of_silent_broker(name)
        return transactions

    def end(self) -> None:
        """End every open transaction of the query that can be found."""
        deadline = self._settings.group_deadline()
        try:
            names = self.names(deadline)
        except AuthorizationError as error:
            self.warn_of_hidden(error.text)
            return
        self._end(names, deadline)

    def end_after_stop(self, seconds: float) -> None:
        """End cancelled tasks' transactions until all tasks have stopped or a newer run joins."""
        # The run's member has left the group, so nobody can commit offsets any more.
        until = time.monotonic() + seconds
        try:
            while True:
                deadline = self._settings.group_deadline(at_most=_SWEEP_TIMEOUT)
                # List transactions first, then describe the group: if the group has no members, a
                # transaction that was already open can't belong to a newer run.
                names = self.names(deadline)
                if self._has_run(deadline):
                    return
                for name in names:
                    if self._has_run(deadline):
                        return
                    self._end([name], deadline)
                if time.monotonic() >= until:
                    return
                time.sleep(_SWEEP_INTERVAL)
        except SparkEosError as error:
            logger.info(
                "group %s: open transactions are left to time out: %s",
                self._settings.group_id,
                error,
            )

    def _has_run(self, deadline: Deadline) -> bool:
        group = describe_group(self._connections, self._settings.group_id, deadline)
        return any(member.instance_id != RENEWAL_INSTANCE for member in group.members)

    def _end(self, names: Collection[str], deadline: Deadline) -> None:
        timeout_ms = self._settings.transactions.timeout_ms
        for name in names:
            logger.info("ending the open transaction of %s", printable(name))
            limit = Deadline(min(_END_TIMEOUT, deadline.remaining()), deadline.setting)
            try:
                fence_producer(self._connections, name, timeout_ms, limit)
            except AuthorizationError as error:
                self.warn_of_hidden(error.text)
            except DeadlineExceededError as error:
                logger.info(
                    "the open transaction of %s is left to the brokers: %s", printable(name), error
                )

    def _warn_of_silent_broker(self, name: str) -> None:
        """Warn once per run and broker."""
        if name in self._silent_brokers:
            return
        self._silent_brokers.add(name)
        warn(
            logger,
            "EOS57",
            "group %s: %s, and is skipped. If it coordinates open transactions of the query, "
            "they are not ended at once: no record is lost or duplicated, but their source "
            "partitions and consumers of the output wait until the brokers end them",
            self._settings.group_id,
            does_not_answer([name]),
        )

    def warn_of_hidden(self, what: str) -> None:
        """Warn once per run that a transaction can't be found or ended and has to time out."""
        if self._warned:
            return
        self._warned = True
        settings = self._settings
        needed = transactional_ids(settings.id_prefix, Operation.WRITE)
        warn(
            logger,
            "EOS58",
            "group %s: %s. A transaction that a killed worker left open is therefore not ended at "
            "once: the brokers end it up to transactions.timeout_ms=%d plus %d s after it began. "
            "No record is lost or duplicated, but until then its source partitions are not written "
            "and consumers of the output wait. To end it at once, the query needs %s: %s",
            settings.group_id,
            what,
            settings.transactions.timeout_ms,
            ABORT_INTERVAL,
            needed,
            settings.client.principal.command(needed),
        )
