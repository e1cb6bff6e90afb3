"""The thread that sends a driver's heartbeats, and what it logs when they fail."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, cast

from spark_eos._client.error_codes import is_final
from spark_eos.errors import SparkEosError, warn

logger = logging.getLogger(__name__)

# The brokers' default group.consumer.session.timeout.ms, in seconds; members aren't told theirs.
_SESSION_TIMEOUT: Final = 45.0
_LONGEST_PAUSE: Final = 1.0


class HeartbeatThread:
    """Calls back whenever heartbeats are due, until it is stopped or the query has ended."""

    def __init__(
        self,
        group_id: str,
        *,
        heartbeat: Callable[[], None],
        due: Callable[[float], bool],
        watch: Callable[[], bool],
        at_end: Callable[[], None],
        each_heartbeat: Callable[[], None],
    ) -> None:
        self._group_id = group_id
        self._heartbeat = heartbeat
        self._due = due
        self._watch = watch
        self._at_end = at_end
        self._each_beat = each_heartbeat
        self.interval = 1.0
        self.refused: SparkEosError | None = None
        self._answered = time.monotonic()
        self._warned = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread, unless it is running."""
        self._answered = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"spark-eos-heartbeat-{self._group_id}", daemon=True
            )
            self._thread.start()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Sends no further heartbeats; doesn't wait for one that is under way."""
        self._stopped.set()

    def join(self, timeout: float) -> None:
        """Waits for the thread to end, unless called on it."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        waited = 0.0
        while not self._stopped.wait(min(_LONGEST_PAUSE, self.interval)):
            waited += min(_LONGEST_PAUSE, self.interval)
            if not self._watch():
                self._at_end()
                return
            if not self._due(waited):
                continue
            waited = 0.0
            try:
                self._heartbeat()
                self._note_answer()
            except Exception as error:  # noqa: BLE001 - without heartbeats the session ends
                self._note_failure(error)
            self._each_beat()

    def _note_answer(self) -> None:
        if self._warned:
            logger.info("heartbeats of group %s are answered again", self._group_id)
        self._answered, self._warned, self.refused = time.monotonic(), False, None

    def _note_failure(self, error: Exception) -> None:
        if is_final(error):
            if self.refused is None:
                logger.error("heartbeat of group %s: %s", self._group_id, error)
            self.refused = cast("SparkEosError", error)
            return
        silence = time.monotonic() - self._answered
        if silence < _SESSION_TIMEOUT or self._warned:
            # Brokers restart and connections break; the session outlives that.
            logger.info("heartbeat of group %s: %s", self._group_id, error)
            return
        self._warned = True
        warn(
            logger,
            "EOS56",
            "group %s: no heartbeat was answered for %.0f s, so the brokers drop the members when "
            "the group's session timeout is over (consumer.session.timeout.ms, 45 s by default). "
            "No record is lost or duplicated: what is written until then is refused, and written "
            "again once the brokers answer. Last error: %s",
            self._group_id,
            silence,
            error,
        )
