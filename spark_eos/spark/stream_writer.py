"""The writer that `ExactlyOnceSink.write` returns: a DataStreamWriter that calls the sink."""

import functools
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_eos.errors import UnsupportedPipelineError
from spark_eos.spark.asynchronous import ProgressTracking
from spark_eos.spark.connect import is_connect
from spark_eos.spark.interrupting import stopping_on_interrupt
from spark_eos.spark.narrow_plan import remote_relations

BatchFunction = Callable[[DataFrame, int], None]
# All that is chosen of a writer, besides its function.
_CHOICES: Final = (
    "outputMode",
    "format",
    "option",
    "options",
    "partitionBy",
    "clusterBy",
    "queryName",
    "trigger",
    "foreach",
)


class StreamWriters:
    """Makes the writers of one sink; only one of their queries may be active at a time."""

    def __init__(self) -> None:
        self._query: StreamingQuery | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark Connect pickles the sink to the process where batches run; nothing starts there.
        return {"_query": None}

    def writer(
        self,
        frame: DataFrame,
        sink: BatchFunction,
        note_relation: Callable[[str], None],
        check: Callable[[], None],
        started: Callable[[StreamingQuery], None],
        tracked: Callable[[DataStreamWriter], ProgressTracking],
        quick: DataFrame | None = None,
    ) -> DataStreamWriter:
        """A writer whose foreachBatch function is the sink, and whose ``start`` is guarded.

        Args:
            frame: The streaming DataFrame.
            sink: Called with each batch.
            note_relation: On Spark Connect, called before each batch with the server's id of it.
            check: Called at the start if no function of the user's own makes the rows to write.
            started: Called with the query once it has started.
            tracked: Decides on classic Spark how it tracks the progress of a writer's query.
            quick: The same rows in columns that suit the sink, but no function of the user's own.
        """
        on_connect = is_connect(frame)

        def made(rows: DataFrame) -> DataStreamWriter:
            found = rows.writeStream
            if on_connect:
                _note_relations(found, note_relation)
            return found.foreachBatch(sink)

        writer = made(frame)
        own = _own_functions(writer)
        choices = _Choices(writer)
        tracking = None if on_connect else tracked(writer)
        start = writer.start

        @functools.wraps(start)
        def start_best(*args: Any, **options: Any) -> StreamingQuery:
            if not own:
                check()
            if tracking is not None:
                tracking.prepare()
            if own or quick is None:
                return start(*args, **options)
            return choices.repeated(made(quick)).start(*args, **options)

        vars(writer)["start"] = self._guarded(start_best, started)
        return writer

    def _guarded(
        self,
        start: Callable[..., StreamingQuery],
        started: Callable[[StreamingQuery], None],
    ) -> Callable[..., StreamingQuery]:
        """A ``start`` that refuses a second active query of the sink.

        Spark would take it for a new run of the first, because of the common checkpoint, and stop
        the first.
        """

        @functools.wraps(start)
        def start_alone(*args: Any, **options: Any) -> StreamingQuery:
            if self._query is not None and _is_active(self._query):
                raise UnsupportedPipelineError(
                    f"the sink's query {self._query.id} is active, and a sink serves one query: "
                    "stop it first, or give the other query a separate sink, with its own "
                    "group_id and checkpoint_location"
                )
            self._query = stopping_on_interrupt(start(*args, **options))
            started(self._query)
            return self._query

        return start_alone


class _Choices:
    """What is chosen of a writer, to choose it of another one too.

    A writer can't change the rows that it was made of, and whose function gets them is known only
    when the query starts.
    """

    def __init__(self, writer: DataStreamWriter) -> None:
        self._made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        for name in _CHOICES:
            vars(writer)[name] = self._noted(name, getattr(writer, name))

    def _noted(
        self, name: str, choose: Callable[..., DataStreamWriter]
    ) -> Callable[..., DataStreamWriter]:
        @functools.wraps(choose)
        def choose_noted(*args: Any, **chosen: Any) -> DataStreamWriter:
            self._made.append((name, args, chosen))
            return choose(*args, **chosen)

        return choose_noted

    def repeated(self, writer: DataStreamWriter) -> DataStreamWriter:
        """Chooses the same of another writer."""
        for name, args, chosen in self._made:
            getattr(writer, name)(*args, **chosen)
        return writer


class _RelationNoting:
    """A function for foreachBatch that notes the server's id of each batch before it runs.

    Pickled together with the sink whose method notes the id, so both end up in one process.
    """

    def __init__(self, note_relation: Callable[[str], None], function: BatchFunction) -> None:
        self._note_relation = note_relation
        self._function = function

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        (relation,) = remote_relations(frame)
        self._note_relation(relation)
        self._function(frame, batch_id)


def _own_functions(writer: DataStreamWriter) -> list[BatchFunction]:
    """Collects what the user gives the writer's foreachBatch from now on."""
    choose = writer.foreachBatch
    own: list[BatchFunction] = []

    @functools.wraps(choose)
    def choose_own(function: BatchFunction) -> DataStreamWriter:
        own.append(function)
        return choose(function)

    vars(writer)["foreachBatch"] = choose_own
    return own


def _note_relations(writer: DataStreamWriter, note_relation: Callable[[str], None]) -> None:
    """Wraps whatever function the user gives the writer's foreachBatch."""
    choose = writer.foreachBatch

    @functools.wraps(choose)
    def choose_noting(function: BatchFunction) -> DataStreamWriter:
        return choose(_RelationNoting(note_relation, function))

    vars(writer)["foreachBatch"] = choose_noting


def _is_active(query: StreamingQuery) -> bool:
    try:
        return query.isActive
    except Exception:  # noqa: BLE001 - however its Spark has ended, so has the query
        return False
