"""What `ExactlyOnceSink.write` returns: Spark's vocabulary for a query that the sink writes."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos._driver.offset_log import OffsetLog
from spark_eos._pyspark_internals import is_connect
from spark_eos._spark.asynchronous import tracking_options
from spark_eos._spark.classic import HadoopFiles
from spark_eos._spark.columns import check_target
from spark_eos._spark.connect_process import RemoteBatches, RemoteSink
from spark_eos._spark.dead_letter_columns import check_error_column
from spark_eos._spark.failed_query import file_fault
from spark_eos.errors import CheckpointError, ConfigurationError, UnsupportedPipelineError

BatchFunction = Callable[[DataFrame, int], None]

_LOCATION: Final = "checkpointLocation"
_INSTEAD: Final = {
    "format": "the sink is the query's only output",
    "toTable": "the sink is the query's only output: write a second query for the table",
    "table": "the sink is the query's only output: write a second query for the table",
    "foreach": "the sink takes whole batches: choose foreachBatch(function)",
    "partitionBy": "it arranges files, and the sink writes to topics",
    "clusterBy": "it arranges files, and the sink writes to topics",
}


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What `ExactlyOnceSink.write` has checked.

    Attributes:
        sink: Called with each batch.
        flattened: The same rows in columns that suit the sink, but no function of the user's own.
        asynchronous: Whether the query's progress is to be tracked asynchronously.
        dead_letters: Whether rows with an error have a topic.
        say_start: Called before it starts, with its checkpoint unless on Spark Connect.
        announce: Called with the query once it has started.
    """

    sink: RemoteSink
    frame: DataFrame
    flattened: DataFrame | None
    location: str
    asynchronous: bool
    dead_letters: bool
    active: "ActiveQuery"
    say_start: Callable[[OffsetLog | None], None]
    announce: Callable[[StreamingQuery], None]


class ExactlyOnceWriter:
    """Starts a query whose rows a sink writes; `ExactlyOnceSink.write` makes it.

    It has the methods of Spark's ``DataStreamWriter`` that fit the sink, and makes that writer
    once, in `start`. Each method but `start` returns the writer itself.

    Examples:
        ::

            writer = sink.write(orders.select("source", "key", "value"))
            query = writer.trigger(processingTime="1 second").queryName("orders").start()
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._function: BatchFunction | None = None
        self._output_mode: str | None = None
        self._query_name: str | None = None
        self._trigger: dict[str, Any] = {}
        self._options: dict[str, Any] = {}

    def trigger(
        self,
        *,
        processingTime: str | None = None,  # noqa: N803 - Spark's names
        availableNow: bool | None = None,  # noqa: N803
        once: bool | None = None,
        continuous: str | None = None,
        realTime: str | None = None,  # noqa: N803
    ) -> "ExactlyOnceWriter":
        """Chooses when batches run; by default one follows another.

        Args:
            processingTime: Interval between the starts of two batches, such as ``1 second``.
            availableNow: True to write what is available now, in as many batches as needed.
            once: True to write it in one batch.
            continuous: Refused: there are no batches, which the sink writes.
            realTime: Refused, likewise.

        Returns:
            This writer.

        Raises:
            ConfigurationError: Not exactly one of the first three is given.
        """
        for name, wanted in (("continuous", continuous), ("realTime", realTime)):
            if wanted is not None:
                raise ConfigurationError(
                    f"trigger({name}={wanted!r}) can't be used: the sink writes batches, of which "
                    "Spark makes none then. Small ones come soon after each other with "
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

    def outputMode(self, outputMode: str) -> "ExactlyOnceWriter":  # noqa: N802, N803
        """Chooses which rows of an aggregation are written: ``append``, ``update``, ``complete``.

        Returns:
            This writer.
        """
        self._output_mode = outputMode
        return self

    def queryName(self, queryName: str) -> "ExactlyOnceWriter":  # noqa: N802, N803
        """Names the query.

        Returns:
            This writer.
        """
        self._query_name = queryName
        return self

    def option(self, key: str, value: bool | float | str | None) -> "ExactlyOnceWriter":  # noqa: FBT001
        """Sets an option of Spark's for the query.

        Returns:
            This writer.

        Raises:
            ConfigurationError: It is ``checkpointLocation``, and another one than the sink's.
        """
        location = self._stream.location
        if key.lower() == _LOCATION.lower() and value != location:
            raise ConfigurationError(
                f"the sink's checkpoint_location is {location!r}: make another sink for {value!r}"
            )
        self._options[key] = value
        return self

    def options(self, **options: bool | float | str | None) -> "ExactlyOnceWriter":
        """Sets several options, as `option` does.

        Returns:
            This writer.

        Raises:
            ConfigurationError: One is ``checkpointLocation``, and another one than the sink's.
        """
        for key, value in options.items():
            self.option(key, value)
        return self

    def foreachBatch(self, func: BatchFunction) -> "ExactlyOnceWriter":  # noqa: N802
        """Calls a function with each batch, which calls the sink with the rows to write.

        Args:
            func: Called with the batch's DataFrame and number. It must call the sink once.

        Returns:
            This writer.

        Examples:
            ::

                def both(batch: DataFrame, batch_id: int) -> None:
                    batch.write.format("delta").mode("append").save(path)
                    sink(batch, batch_id)

                sink.write(rows).foreachBatch(both).start()
        """
        self._function = func
        return self

    def start(
        self,
        *,
        outputMode: str | None = None,  # noqa: N803 - Spark's names
        queryName: str | None = None,  # noqa: N803
        **options: bool | float | str | None,
    ) -> StreamingQuery:
        """Starts the query.

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
        return self._stream.active.start(self._start)

    def _start(self) -> StreamingQuery:
        stream, own = self._stream, self._function
        if own is None:
            check_target(stream.frame.schema)
            check_error_column(stream.frame.schema, dead_letters=stream.dead_letters)
        rows = stream.frame if own is not None or stream.flattened is None else stream.flattened
        function: BatchFunction = stream.sink
        if own is not None:
            function = _CallsSink(own, stream.sink)
        options = dict(self._options)
        log = None
        if is_connect(rows):
            function = RemoteBatches(stream.sink, function)
        else:
            with _checkpoint_at(stream.location):
                files = HadoopFiles(rows.sparkSession, stream.location)
            log = OffsetLog(files)
            options |= tracking_options(files, self._trigger, wanted=stream.asynchronous)
        writer = rows.writeStream.foreachBatch(function)
        if self._output_mode is not None:
            writer = writer.outputMode(self._output_mode)
        if self._query_name is not None:
            writer = writer.queryName(self._query_name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        for name, value in {**options, _LOCATION: stream.location}.items():
            writer = writer.option(name, value)
        stream.say_start(log)
        with _checkpoint_at(stream.location):
            query = writer.start()
        stream.announce(query)
        return query

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if (why := _INSTEAD.get(name)) is not None:
                raise AttributeError(f"what sink.write returns has no {name}: {why}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@contextlib.contextmanager
def _checkpoint_at(location: str) -> Iterator[None]:
    """Says what a file system refuses where a query starts: all that it does there is for this."""
    try:
        yield
    except Exception as error:
        why = file_fault(str(error))
        if why is None:
            raise
        raise CheckpointError(f"checkpoint_location {location!r} can't be created: {why}") from None


class _CallsSink:
    """A function of the user's own, which must write each batch with the sink.

    Without it the offsets of a batch's records are not committed. The next batch would find that,
    but there may be none.
    """

    def __init__(self, function: BatchFunction, sink: RemoteSink) -> None:
        self._function = function
        self._sink = sink

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self._function(frame, batch_id)
        self._sink.check_written(batch_id)


class ActiveQuery:
    """The query of a sink, which serves one at a time."""

    def __init__(self) -> None:
        self._query: StreamingQuery | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark Connect pickles the sink to the process where batches run; nothing starts there.
        return {"_query": None}

    def start(self, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """Starts a query, unless another one is active.

        Spark would take it for a new run of the first, because of the common checkpoint, and stop
        the first.
        """
        if self._query is not None and _is_active(self._query):
            raise UnsupportedPipelineError(
                f"the sink's query {self._query.id} is active, and a sink serves one query: "
                "stop it first, or give the other query a separate sink, with its own "
                "group_id and checkpoint_location"
            )
        self._query = start()
        return self._query


def _is_active(query: StreamingQuery) -> bool:
    try:
        return query.isActive
    except Exception:  # noqa: BLE001 - however its Spark has ended, so has the query
        return False
