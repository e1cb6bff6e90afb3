"""Runs the query of a spark-submit job from start to stop."""

import logging
from collections.abc import Callable
from typing import Any

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos._batch_report import BatchReport
from spark_eos._pyspark_internals import is_connect
from spark_eos._sink.sink import ExactlyOnceSink
from spark_eos._spark.failed_query import without_trace
from spark_eos._spark.session import session_builder
from spark_eos.errors import ConfigurationError, QueryFailedError, SparkEosError
from spark_eos.jobs.options import JobOptions
from spark_eos.jobs.running import StopSignals, wait
from spark_eos.observability.json_logs import JsonFormatter
from spark_eos.observability.listener import BatchListener

logger = logging.getLogger(__name__)


class JobMetrics:
    """Prometheus metrics of a job's query: its batches and, in classic Spark, its lag."""

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
        """Get the lag, and proof that the query is alive, from Spark's progress."""
        # Spark Connect runs the batches, and therefore these metrics, in another process.
        if not is_connect(spark):
            self._listener = BatchListener(self._metrics.on_progress, self._metrics.on_idle)
            spark.streams.addListener(self._listener)

    def __call__(self, report: BatchReport) -> None:
        """Add a batch to the metrics; the sink calls it as ``on_batch``."""
        self._metrics(report)
        if self._listener is not None:
            self._listener(report)

    def on_query(self, query: StreamingQuery, group_id: str) -> None:
        """Remember the query's group; the sink calls it when the query has started."""
        if self._listener is not None:
            self._listener.on_query(query, group_id)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_listener": None}


def _session() -> SparkSession:
    return session_builder().getOrCreate()


def run_job(
    options: JobOptions,
    transform: Callable[[DataFrame], DataFrame],
    *,
    include_headers: bool = False,
    session: Callable[[], SparkSession] = _session,
) -> None:
    """Run a query until it ends or SIGINT or SIGTERM stops it; log each batch.

    Args:
        options: The parsed command line.
        transform: Function from the columns of `ExactlyOnceSink.read` to the columns that
            `ExactlyOnceSink.write` takes; it may use only narrow operators.
        include_headers: Whether to read the records' headers too.
        session: Function that starts Spark. The default uses `session_builder`, which leaves
            spark-submit's configuration unchanged.

    Raises:
        click.UsageError: An option can't be used; raised before Spark starts.
        click.ClickException: The query failed for a reason that its message explains.
        SystemExit: After a signal, with status 128 + the signal's number.

    Examples:
        ::

            @click.command()
            @job_options
            def main(options: JobOptions) -> None:
                run_job(options, lambda orders: orders.select("source", "key", "value"))
    """
    _log_to_stderr(options.log_format)
    metrics = (
        None
        if options.metrics_port is None
        else JobMetrics(options.metrics_port, options.metrics_address)
    )
    with StopSignals() as signals:
        try:
            sink = ExactlyOnceSink(
                kafka=options.kafka,
                source_kafka=options.source_kafka,
                group_id=options.group_id,
                topic=options.target,
                checkpoint_location=options.checkpoint_location,
                on_batch=metrics,
                **options.sink,
            )
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from error
        spark = session()
        signals.install()  # again, because Spark has installed its own handler
        if metrics is not None:
            metrics.listen(spark)
        try:
            frame = sink.read(
                spark,
                subscribe=options.source,
                starting_offsets=options.starting_offsets,
                include_headers=include_headers,
                options=options.source_options,
            )
            signals.waiting = True
            query = sink.write(transform(frame)).trigger(**options.trigger).start()
        except SparkEosError as error:
            raise click.ClickException(str(error)) from error
        _wait(query, sink, signals)


def _wait(query: StreamingQuery, sink: ExactlyOnceSink, signals: StopSignals) -> None:
    try:
        wait([query], signals)
    except QueryFailedError as error:
        raise click.ClickException(str(error)) from error
    except (Py4JError, ConnectionError) as error:
        raise click.ClickException("Spark's JVM has ended.") from error
    except PySparkException as error:
        # Spark Connect's server does not answer any more, or has closed the session.
        raise click.ClickException(f"Spark has failed: {without_trace(str(error))}") from error
    finally:
        sink.close()
    if signals.status is not None:
        logger.warning("stopped by a signal")
        raise SystemExit(signals.status)


def _log_to_stderr(log_format: str) -> None:
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else plain)
    logging.basicConfig(handlers=[handler])
    logging.getLogger("spark_eos").setLevel(logging.INFO)
    # py4j would report lost connections to a JVM that is stopping.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
