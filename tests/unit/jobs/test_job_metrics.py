"""A job's metrics: with a listener in classic Spark, and sent to Spark Connect without one."""

import pickle
import socket
import urllib.request
from types import SimpleNamespace
from typing import Any

import click

from spark_eos.jobs.job import JobMetrics
from spark_eos.jobs.options import JobOptions, job_options
from spark_eos.observability.listener import BatchListener
from support.jobs import GIVEN
from support.reports import REPORT


def test_they_are_sent_without_the_listener() -> None:
    listeners: list[Any] = []
    spark: Any = SimpleNamespace(streams=SimpleNamespace(addListener=listeners.append))
    metrics = JobMetrics(0, "127.0.0.1")
    metrics.listen(spark)
    assert [type(one) for one in listeners] == [BatchListener]
    sent = pickle.loads(pickle.dumps(metrics))  # noqa: S301 - as Spark Connect does
    sent(REPORT)
    sent.on_query(SimpleNamespace(id="1"), "orders")


def _options(*more: str) -> JobOptions:
    """A job's arguments for a command line."""
    found: list[JobOptions] = []

    @click.command()
    @job_options
    def main(options: JobOptions) -> None:
        found.append(options)

    main([*GIVEN, *more], standalone_mode=False)
    (options,) = found
    return options


def test_they_are_served_on_the_interface_that_is_named() -> None:
    with socket.socket() as taken:
        # So nobody else serves there, and serving on all interfaces fails.
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        options = _options("--metrics-port", str(port), "--metrics-address", "127.0.0.2")
        assert options.metrics_port == port
        metrics = JobMetrics(port, options.metrics_address)
        metrics(REPORT)
        try:
            with urllib.request.urlopen(f"http://127.0.0.2:{port}/metrics", timeout=60) as answer:
                assert "spark_eos_batches_total" in answer.read().decode()
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)) != 0
        finally:
            metrics._metrics.close()
    assert _options("--metrics-port", str(port)).metrics_address == "127.0.0.1"
