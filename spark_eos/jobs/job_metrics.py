"""The metrics that a job serves with ``--metrics-port``."""

from typing import Any

import click
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos._batch.batch_report import BatchReport
from spark_eos._pyspark_internals import is_connect
from spark_eos.observability.listener import BatchListener


class JobMetrics:
    """Prometheus metrics of a job's query: of its batches and, in classic Spark, of its lag.

    Args:
        port: The port to serve them on.
        address: The address to serve them on.

    Raises:
        click.UsageError: The extra ``metrics`` is not installed.

    Example:
        ::

            metrics = JobMetrics(9464, "127.0.0.1")
            sink = ExactlyOnceSink(..., on_batch=metrics)
            metrics.listen(spark)
    """

    def __init__(self, port: int, address: str) -> None:
        try:
            from spark_eos.observability.prometheus import (  # noqa: PLC0415 - an extra
                PrometheusMetrics,
            )
        except ImportError as error:
            raise click.UsageError(f"--metrics-port: {error}") from error
        self._metrics = PrometheusMetrics(port=port, address=address)
        self._listener: BatchListener | None = None

    def listen(self, spark: SparkSession) -> None:
        """Takes the lag, and signs of life, from Spark's progress.

        Not with Spark Connect, which runs the batches, and these metrics, in another process.
        """
        if not is_connect(spark):
            self._listener = BatchListener(self._metrics.on_progress, self._metrics.on_idle)
            spark.streams.addListener(self._listener)

    def __call__(self, report: BatchReport) -> None:
        """Notes a batch; called as ``on_batch``."""
        self._metrics(report)
        if self._listener is not None:
            self._listener(report)

    def on_query(self, query: StreamingQuery, group_id: str) -> None:
        """Notes the query's group; the sink calls it when the query has started."""
        if self._listener is not None:
            self._listener.on_query(query, group_id)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_listener": None}
