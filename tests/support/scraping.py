"""Samples of the metrics that a driver serves, as Prometheus would have them."""

import threading
import time
import urllib.request
from collections.abc import Iterable
from types import TracebackType

from prometheus_client.parser import text_string_to_metric_families

from support.promql import Recording, Series

_WANTED = (
    "spark_eos_last_seen_timestamp_seconds",
    "spark_eos_last_batch_timestamp_seconds",
    "spark_eos_source_lag_records",
    "spark_eos_retry_attempts_total",
)


class Scraper:
    """Scrapes a port on a thread of its own."""

    def __init__(self, port: int, seconds: float, names: Iterable[str] = _WANTED) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._seconds = seconds
        self._names = set(names)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.recording: Recording = {}

    def __enter__(self) -> "Scraper":
        self._thread.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            now = round(time.time(), 3)
            values = self._scrape()
            for series in self.recording.keys() | values.keys():
                # As Prometheus does: a series that is gone is marked as stale, once.
                points = self.recording.setdefault(series, [])
                value = values.get(series)
                if value is not None or (points and points[-1][1] is not None):
                    points.append((now, value))

    def _scrape(self) -> dict[Series, float]:
        try:
            with urllib.request.urlopen(self._url, timeout=60) as answer:  # noqa: S310
                text = answer.read().decode()
        except OSError:
            return {}
        return {
            Series(sample.name, tuple(sorted(sample.labels.items()))): round(sample.value, 3)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in self._names
        }
