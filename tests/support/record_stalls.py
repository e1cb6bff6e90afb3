"""Records metrics of a query that stalls, for `test_alerts.py`; about a quarter of an hour.

``cd tests && ../.venv/bin/python -m support.record_stalls`` writes ``support/recorded/*.json``: of
a query that runs, has nothing to read, and hangs; and of one that runs and is killed.
"""

import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from spark_eos.testing import EmbeddedKafka
from spark_eos.testing.broker_properties import free_ports
from support.flow import Flow
from support.promql import Recording, Series, save
from support.queries import QueryProcess, until

RECORDED = Path(__file__).parent / "recorded"
# Prometheus' own would be longer; every 15 seconds is what many set.
_SCRAPES = 15.0
_RUN = 60.0
# More than the alert's 300 seconds.
_STAND = 400.0


_WANTED = (
    "spark_eos_last_seen_timestamp_seconds",
    "spark_eos_last_batch_timestamp_seconds",
    "spark_eos_source_lag_records",
    "spark_eos_retry_attempts_total",
)


class _Scraper:
    """Samples of a driver's metrics, as Prometheus would have them."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.recording: Recording = {}

    def __enter__(self) -> "_Scraper":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._ended.wait(_SCRAPES):
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
            if sample.name in _WANTED
        }


def _flow(broker: EmbeddedKafka, directory: Path) -> Flow:
    return Flow(broker, str(directory / "checkpoint"), str(directory / "workers"))


def _run(flow: Flow, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        flow.produce(range(10))
        time.sleep(2)


def _hangs(broker: EmbeddedKafka, directory: Path) -> None:
    flow, port, go = _flow(broker, directory), free_ports().client, str(directory / "go")
    hold: dict[str, Any] = {"hold": (go, "poison"), "metrics_port": port, "available_now": False}
    with QueryProcess(flow, directory / "log", **hold), _Scraper(port) as scraper:
        until(lambda: len(scraper.recording), (directory / "log").read_text, 180)
        events = {"runs": time.time()}
        _run(flow, _RUN)
        events["idle"] = time.time()
        time.sleep(_STAND)
        events["runs again"] = time.time()
        _run(flow, _RUN)
        flow.produce(["poison"])
        until(Path(f"{go}.waiting").exists, lambda: "the task")
        events["hangs"] = time.time()
        _run(flow, _STAND)  # There is more and more to read.
        events["end"] = time.time()
    save(scraper.recording, events, RECORDED / "hangs.json")


def _dies(broker: EmbeddedKafka, directory: Path) -> None:
    flow, port = _flow(broker, directory), free_ports().client
    settings: dict[str, Any] = {"metrics_port": port, "available_now": False}
    with (
        QueryProcess(flow, directory / "log", **settings) as query,
        _Scraper(port) as scraper,
    ):
        until(lambda: len(scraper.recording), (directory / "log").read_text, 180)
        events = {"runs": time.time()}
        _run(flow, _RUN)
        query.kill()
        events["dies"] = time.time()
        _run(flow, _STAND)
        events["end"] = time.time()
    save(scraper.recording, events, RECORDED / "dies.json")


def main() -> None:
    RECORDED.mkdir(exist_ok=True)
    stalls: list[Callable[[EmbeddedKafka, Path], None]] = [_hangs, _dies]
    with EmbeddedKafka() as broker, ThreadPoolExecutor() as pool:
        running = []
        for stall in stalls:
            directory = Path(tempfile.mkdtemp())
            running.append(pool.submit(stall, broker, directory))
        for one in running:
            one.result()


if __name__ == "__main__":
    main()
