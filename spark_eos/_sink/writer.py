"""The writer that `ExactlyOnceSink.write` returns, with the methods of Spark's own writer."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkPicklingError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos._checkpoint.offset_log import LogFiles, OffsetLog, complete_logs
from spark_eos._client.argument_types import typed
from spark_eos._client.locations import without_credentials
from spark_eos._delivery.base import SinkQuery
from spark_eos._pyspark_internals import (
    ANY_SINK_ASYNCHRONOUS,
    in_connect_worker,
    is_connect,
    remote_relations,
)
from spark_eos._sink.batches import SinkBatches
from spark_eos._sink.start_checks import StartChecks
from spark_eos._sink.start_line import say_start
from spark_eos._spark.columns import check_target
from spark_eos._spark.dead_letter_columns import check_error_column
from spark_eos._spark.failed_query import file_fault
from spark_eos._spark.final_steps import without_final_steps
from spark_eos._spark.spark_files import HadoopFiles, SparkFiles
from spark_eos.errors import CheckpointError, ConfigurationError, SparkEosError

BatchFunction = Callable[[DataFrame, int], None]

logger = logging.getLogger(__name__)

_LOCATION: Final = "checkpointLocation"
_ASYNCHRONOUS: Final = "asyncProgressTrackingEnabled"
_INSTEAD: Final = {
    "format": "the sink is the query's only output",
    "toTable": "the sink is the query's only output: write a second query for the table",
    "table": "the sink is the query's only output: write a second query for the table",
    "foreach": "the sink takes whole batches: choose foreachBatch(function)",
    "partitionBy": "it arranges files, and the sink writes to topics",
    "clusterBy": "it arranges files, and the sink writes to topics",
}


class ExactlyOnceWriter:
    """Starts a query whose rows a sink writes; `ExactlyOnceSink.write` makes it.

    It has the methods of Spark's ``DataStreamWriter`` that fit the sink, and creates Spark's writer
    only in `start`. Every method except `start` returns this writer.

    Examples:
        ::

            writer = sink.write(orders.select("source", "key", "value"))
            query = writer.trigger(processingTime="1 second").queryName("orders").start()
    """

    def __init__(
        self, batches: SinkBatches, query: SinkQuery, frame: DataFrame, *, asynchronous: bool
    ) -> None:
        self._batches = batches
        self._query = query
        self._frame = frame
        self._asynchronous = asynchronous
        self._function: BatchFunction | None = None
        self._output_mode: str | None = None
        self._query_name: str | None = None
        self._trigger: dict[str, Any] = {}
        self._options: dict[str, Any] = {}

    @typed
    def trigger(
        self,
        *,
        processingTime: str | None = None,  # noqa: N803 - Spark's names
        availableNow: bool | None = None,  # noqa: N803
        once: bool | None = None,
        continuous: str | None = None,
        realTime: str | None = None,  # noqa: N803
    ) -> "ExactlyOnceWriter":
        """Choose when batches run; by default, each starts as soon as the previous one ends.

        Args:
            processingTime: Interval between the starts of two batches, such as ``1 second``.
            availableNow: True to write what is available now, in as many batches as needed.
            once: True to write it in one batch.
            continuous: Refused, because Spark then makes no batches for the sink to write.
            realTime: Refused for the same reason.

        Returns:
            This writer.

        Raises:
            ConfigurationError: None or several of the first three are given.
        """
        for name, wanted in (("continuous", continuous), ("realTime", realTime)):
            if wanted is not None:
                raise ConfigurationError(
                    f"trigger({name}={wanted!r}) can't be used: the sink writes batches, and Spark "
                    "makes none with this trigger. For small batches in quick succession, use "
                    "processingTime='0 seconds', the default, and asynchronous_progress=True"
                )
        given = {"processingTime": processingTime, "availableNow": availableNow, "once": once}
        chosen = {name: value for name, value in given.items() if value is not None}
        if len(chosen) != 1:
            raise ConfigurationError(
                "trigger takes exactly one of processingTime, availableNow and once, not "
                f"{', '.join(chosen) or 'none'}"
            )
        self._trigger = chosen
        return self

    @typed
    def outputMode(self, outputMode: str) -> "ExactlyOnceWriter":  # noqa: N802, N803
        """Choose which rows of an aggregation are written: ``append``, ``update``, ``complete``.

        Returns:
            This writer.
        """
        self._output_mode = outputMode
        return self

    @typed
    def queryName(self, queryName: str) -> "ExactlyOnceWriter":  # noqa: N802, N803
        """Name the query.

        Returns:
            This writer.
        """
        self._query_name = queryName
        return self

    @typed
    def option(self, key: str, value: bool | float | str | None) -> "ExactlyOnceWriter":  # noqa: FBT001
        """Set an option of Spark's for the query.

        Returns:
            This writer.

        Raises:
            ConfigurationError: The option is ``checkpointLocation``, and differs from the sink's.
        """
        location = self._query.location
        if key.lower() == _LOCATION.lower() and value != location:
            own, other = without_credentials(location), without_credentials(str(value))
            raise ConfigurationError(
                f"the sink's checkpoint_location is {own!r}: create another sink for {other!r}"
            )
        self._options[key] = value
        return self

    @typed
    def options(self, **options: bool | float | str | None) -> "ExactlyOnceWriter":
        """Set several options, as `option` does.

        Returns:
            This writer.

        Raises:
            ConfigurationError: One of them is ``checkpointLocation``, and differs from the sink's.
        """
        for key, value in options.items():
            self.option(key, value)
        return self

    @typed
    def foreachBatch(self, func: BatchFunction) -> "ExactlyOnceWriter":  # noqa: N802
        """Call a function with each batch; the function calls the sink with the rows to write.

        Args:
            func: Called with the batch's DataFrame and number. It must call the sink once.

        Returns:
            This writer.

        Examples:
            ::

                def both(batch: DataFrame, batch_id: int) -> None:
                    print(f"batch {batch_id} begins")  # again if Spark repeats the batch
                    sink(batch, batch_id)

                sink.write(rows).foreachBatch(both).start()
        """
        self._function = func
        return self

    @typed
    def start(
        self,
        *,
        outputMode: str | None = None,  # noqa: N803 - Spark's names
        queryName: str | None = None,  # noqa: N803
        **options: bool | float | str | None,
    ) -> StreamingQuery:
        """Start the query.

        Args:
            outputMode: As `outputMode`.
            queryName: As `queryName`.
            **options: As `options`.

        Returns:
            Spark's query.

        Raises:
            UnsupportedPipelineError: Another query of the sink is active, or a column can't be
                written.
            CheckpointError: The checkpoint's logs can't be used.
            ConfigurationError: ``checkpointLocation`` is among the options.
        """
        if outputMode is not None:
            self.outputMode(outputMode)
        if queryName is not None:
            self.queryName(queryName)
        self.options(**options)
        batches, location = self._batches, self._query.location
        failures = batches.begin_start()
        rows, function = self._rows_and_function()
        spark = rows.sparkSession
        if is_connect(rows):
            function = _RemoteBatches(batches, function)
        else:
            function = failures.noted()(function)
        checks, tracking = self._checks(spark)
        log = OffsetLog(checks.files)
        with _checkpoint_at(location):
            batches.prepare(self._query, spark, log.begun)
        with _naming_what_cannot_be_copied():
            writer = rows.writeStream.foreachBatch(function)
        if self._output_mode is not None:
            writer = writer.outputMode(self._output_mode)
        if self._query_name is not None:
            writer = writer.queryName(self._query_name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        for name, value in {**self._options, **tracking, _LOCATION: location}.items():
            writer = writer.option(name, value)
        with batches.start as start:
            with _checkpoint_at(location):
                checks.check(start)
            say_start(self._query, spark, start, None if is_connect(rows) else log)
        if is_connect(rows):
            # On Spark Connect, the run is in another process.
            batches.start.close()
        with _checkpoint_at(location):
            query = writer.start()
        batches.note_started(self._query, query, checks)
        return query

    def _rows_and_function(self) -> tuple[DataFrame, BatchFunction]:
        """Return the frame that Spark runs, and the function that Spark calls with its batches."""
        frame, query, batches = self._frame, self._query, self._batches
        if self._function is not None:
            # The function sees the columns, so leave them as they are.
            return frame, _CallsSink(self._function, batches)
        check_target(frame.schema)
        check_error_column(frame.schema, dead_letters=query.settings.dead_letters is not None)
        before, steps = without_final_steps(frame)
        flat = query.delivery.flattened(before, query)
        if flat is None:
            return frame, batches
        # The steps go with the function, because they belong to the frame of this start.
        return flat, functools.partial(batches.write, final_steps=steps)

    def _checks(self, spark: SparkSession) -> tuple[StartChecks, dict[str, str]]:
        """Return the checks of the start, and the options for tracking the query's progress."""
        location = self._query.location
        ends = bool(self._trigger.get("availableNow") or self._trigger.get("once"))
        every_batch = ends or not self._asynchronous
        if is_connect(spark):
            return StartChecks(self._query, spark, SparkFiles(spark, location), every_batch), {}
        with _checkpoint_at(location):
            files = HadoopFiles(spark, location)
        _complete_logs(files, every_batch=every_batch)
        tracking = {_ASYNCHRONOUS: str(not ends).lower(), ANY_SINK_ASYNCHRONOUS: "true"}
        checks = StartChecks(self._query, spark, files, every_batch)
        return checks, tracking if self._asynchronous else {}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if (why := _INSTEAD.get(name)) is not None:
                raise AttributeError(f"the writer of sink.write has no {name}: {why}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@contextlib.contextmanager
def _checkpoint_at(location: str) -> Iterator[None]:
    """Explain a file system's error during a start, which touches only the checkpoint."""
    try:
        yield
    except SparkEosError:
        raise
    except Exception as error:
        why = file_fault(str(error))
        if why is None:
            raise
        where, why = without_credentials(location), without_credentials(why)
        raise CheckpointError(f"checkpoint_location {where!r} can't be created: {why}") from None


@contextlib.contextmanager
def _naming_what_cannot_be_copied() -> Iterator[None]:
    """Raise our own error if something in ``on_batch`` can't be copied to Connect's process."""
    try:
        yield
    except PySparkPicklingError as error:
        # Spark has replaced the error twice, and always blames a session or DataFrame.
        cause = error.__context__ and error.__context__.__context__
        if isinstance(cause, SparkEosError):
            raise cause from None
        raise


class _RemoteBatches:
    """The query's function on Connect: notes the server's id of each batch, and signs errors."""

    # Spark pickles this object together with the sink that a user's function calls, so both end up
    # in the same process. Unpickling a sink by itself starts nothing.

    def __init__(self, batches: SinkBatches, function: BatchFunction) -> None:
        self._batches = batches
        self._function = function

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        with self._batches.failures.signed():
            (relation,) = remote_relations(frame)
            self._batches.note_relation(relation)
            self._function(frame, batch_id)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if in_connect_worker():
            self._batches.begin_remotely()


class _CallsSink:
    """A user's function, which must write each batch, even the last one."""

    def __init__(self, function: BatchFunction, batches: SinkBatches) -> None:
        self._function = function
        self._batches = batches

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self._function(frame, batch_id)
        self._batches.check_written(batch_id)


def _complete_logs(files: LogFiles, *, every_batch: bool) -> None:
    """Complete an offset log that Spark has written asynchronously."""
    # Normally, Spark logs each batch's offsets before the batch, and the batch's end after it. This
    # takes half the time of a batch of 100 rows. With asynchronous tracking, Spark logs once a
    # second. After a crash, Spark divides records that it has not logged into different batches.
    # Rows that are already written are skipped, because the group's offsets were committed with
    # them.
    added = complete_logs(files, every_batch=every_batch)
    if added is not None:
        logger.info(
            "checkpoint %s: batch %d added to the offset log, because Spark had tracked the "
            "query's progress asynchronously",
            files.location,
            added,
        )
