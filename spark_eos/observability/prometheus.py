"""Prometheus metrics of batches; needs the extra ``metrics``."""

import threading
from collections import Counter as Sums
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from spark_eos._batch_report import TASK_STEPS, BatchReport
from spark_eos.errors import ConfigurationError
from spark_eos.observability.listener import BatchProgress

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client import start_http_server as serve
except ImportError as error:
    raise ImportError(
        "spark_eos.observability.prometheus needs prometheus-client: pip install prometheus-client"
    ) from error

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class _Families:
    """The metrics of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # Names follow prometheus.io's conventions: base units, and labels that can be summed over.
        # The number of series does not grow with partitions or batches.
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry, buckets=_SECONDS)
        group, source, step = ["group_id"], ["group_id", "source_topic"], ["group_id", "step"]
        self.batches = counter("spark_eos_batches", "Batches committed.", group)
        self.attempts = counter(
            "spark_eos_retry_attempts",
            "Spark jobs beyond a batch's first: a task failed and its rows were written again.",
            group,
        )
        self.transactions = counter("spark_eos_transactions", "Transactions committed.", group)
        self.bytes = counter(
            "spark_eos_written_bytes",
            "Size in Arrow, in bytes, of the rows handed to the producers.",
            group,
        )
        self.rows_written = counter(
            "spark_eos_rows_written",
            "Output rows committed, by the topic of their source records.",
            source,
        )
        self.rows_skipped = counter(
            "spark_eos_rows_skipped",
            "Output rows skipped because an earlier attempt had committed them.",
            source,
        )
        self.dead_letters = counter(
            "spark_eos_dead_letters",
            "Rows committed as dead letters, by reason.",
            [*group, "reason"],
        )
        self.timestamps_adjusted = counter(
            "spark_eos_timestamps_adjusted",
            "Records of 1970-01-01T00:00:00Z, which are written with a timestamp 1 ms later.",
            group,
        )
        self.offsets = counter(
            "spark_eos_source_offsets",
            "Source offsets covered by batches, including transaction markers.",
            source,
        )
        self.offsets_lost = counter(
            "spark_eos_source_offsets_lost", "Source offsets deleted before they were read.", source
        )
        self.partitions = gauge(
            "spark_eos_source_partitions", "Source partitions in the last batch.", source
        )
        self.lag = gauge(
            "spark_eos_source_lag_records",
            "Offsets that were available but unread at the last batch; set by a BatchListener.",
            source,
        )
        self.last = gauge(
            "spark_eos_last_batch_timestamp_seconds",
            "Unix time at which the last batch was committed.",
            group,
        )
        self.seen = gauge(
            "spark_eos_last_seen_timestamp_seconds",
            "Unix time of the last committed batch or, with a BatchListener, of Spark's last "
            "report that there is nothing to read, if that is later.",
            group,
        )
        self.duration = histogram(
            "spark_eos_batch_duration_seconds", "Duration of a batch, as seen by the driver.", group
        )
        self.driver_duration = histogram(
            "spark_eos_driver_duration_seconds",
            "Duration of each step of a batch on the driver.",
            step,
        )
        self.task_duration = counter(
            "spark_eos_task_duration_seconds",
            "Duration of each step of the tasks, summed over all tasks.",
            step,
        )

    def count(self, report: BatchReport) -> None:
        """Add a batch to the metrics."""
        group = report.group_id
        self.batches.labels(group).inc()
        # A staged batch that has no rows to write runs no job.
        self.attempts.labels(group).inc(max(0, report.attempts - 1))
        self.transactions.labels(group).inc(report.transactions)
        self.bytes.labels(group).inc(report.bytes_written)
        self.timestamps_adjusted.labels(group).inc(report.timestamps_adjusted)
        self.last.labels(group).set_to_current_time()
        self.seen.labels(group).set_to_current_time()
        partitions = Sums(p.topic for p in report.partitions)
        for topic, number in partitions.items():
            self.partitions.labels(group, topic).set(number)
        for lost in report.lost:
            self.offsets_lost.labels(group, lost.topic).inc(lost.after - lost.first)
        for reason, number in report.dead_letters.items():
            self.dead_letters.labels(group, reason).inc(number)
        for p in report.partitions:
            self.rows_written.labels(group, p.topic).inc(p.rows_written)
            self.rows_skipped.labels(group, p.topic).inc(p.rows_skipped)
            # The offset log lacks the start of a new partition.
            covered = 0 if p.start is None else p.end - p.start
            self.offsets.labels(group, p.topic).inc(covered)
        for step, spent in report.milliseconds.items():
            if step == "total":
                self.duration.labels(group).observe(spent / 1000)
            elif step in TASK_STEPS:
                self.task_duration.labels(group, step).inc(spent / 1000)
            else:
                self.driver_duration.labels(group, step).observe(spent / 1000)

    def note_lag(self, group_id: str, lag: Mapping[tuple[str, int], int]) -> None:
        """Set the lag of each source topic."""
        sums: Sums[str] = Sums()
        for (topic, _partition), records in lag.items():
            sums[topic] += records
        for topic, records in sums.items():
            self.lag.labels(group_id, topic).set(records)


# A registry accepts each name only once, and a process can bind each port only once. But a notebook
# creates a new object of the class below each time its cells run.
_lock = threading.Lock()
_families: WeakKeyDictionary[CollectorRegistry, _Families] = WeakKeyDictionary()
_servers: dict[tuple[str, int], tuple[CollectorRegistry, Any]] = {}


class PrometheusMetrics:
    """Keeps Prometheus metrics of batches; pass it to the sink as ``on_batch``.

    Serving starts with the first batch, or when Spark first reports that there is nothing to read
    (`on_idle`), in the process that runs the batches. With Spark Connect, that is a process of the
    server, one per query.

    Args:
        registry: Registry that holds the metrics; by default prometheus_client's own. A registry
            of your own can't be used with Spark Connect.
        port: Port on which to serve the metrics, over HTTP at ``/metrics``; 0 takes a free port.
            None if you expose the registry in another way.
        address: Interface to serve on. By default only this host can reach the metrics, because
            they name groups and topics; ``0.0.0.0`` serves on all interfaces.

    Raises:
        ConfigurationError: ``port`` is not between 0 and 65535.

    Examples:
        >>> metrics = PrometheusMetrics(port=0)
        >>> print(metrics.port)  # none before the first batch
        None

        Serve the metrics of a query, with the lag that Spark reports:

            metrics = PrometheusMetrics(port=9108)
            listener = BatchListener(metrics.on_progress, metrics.on_idle)
            spark.streams.addListener(listener)
            sink = ExactlyOnceSink(..., on_batch=[metrics, listener])
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry | None = None,
        port: int | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        if port is not None and not 0 <= port <= 65_535:
            raise ConfigurationError(f"port is {port}; it must be between 0 and 65535")
        self._registry = registry
        self._address = address
        self._port = port
        self._bound: int | None = None

    @property
    def port(self) -> int | None:
        """The port on which the metrics are served; None before the first batch."""
        return self._bound

    def __call__(self, report: BatchReport) -> None:
        """Count a batch; the first one starts serving.

        Raises:
            ConfigurationError: The port can't be bound.
        """
        self._families().count(report)
        self._serve()

    def on_progress(self, joined: BatchProgress) -> None:
        """Set the lag; for `spark_eos.observability.listener.BatchListener`."""
        self._families().note_lag(joined.report.group_id, joined.lag)

    def on_idle(self, group_id: str) -> None:
        """Record that a query is alive but has nothing to read; for the listener's ``on_idle``.

        Raises:
            ConfigurationError: The port can't be bound.
        """
        self._families().seen.labels(group_id).set_to_current_time()
        self._serve()

    def close(self) -> None:
        """Stop serving for good; the metrics stay in their registry and keep counting."""
        with _lock:
            bound, self._bound, self._port = self._bound, None, None
            if bound is not None and (self._address, bound) in _servers:
                _registry, server = _servers.pop((self._address, bound))
                server.shutdown()
                server.server_close()

    def _families(self) -> _Families:
        registry = self._registry or REGISTRY
        with _lock:
            if registry not in _families:
                _families[registry] = _Families(registry)
            return _families[registry]

    def _serve(self) -> None:
        registry = self._registry or REGISTRY
        with _lock:
            if self._port is None:
                return
            # Another object may have served the registry, and may have been closed since.
            port = self._bound or self._port
            serving = _servers.get((self._address, port))
            if serving is not None and serving[0] is registry:
                self._bound = port
                return
            try:
                server, _thread = serve(self._port, self._address, registry)
            except OSError as error:
                raise ConfigurationError(
                    f"metrics can't be served on {self._address}:{self._port} "
                    f"({error.strerror}): give PrometheusMetrics another port"
                ) from error
            self._bound = int(server.server_port)
            _servers[self._address, self._bound] = (registry, server)

    def __getstate__(self) -> dict[str, Any]:
        if self._registry is not None:
            raise ConfigurationError(
                "PrometheusMetrics(registry=...) can't be sent to the process in which Spark "
                "Connect runs the batches: omit registry and give a port"
            )
        return {**self.__dict__, "_bound": None}
