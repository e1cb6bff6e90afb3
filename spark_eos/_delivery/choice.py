"""The deliveries (direct, mirrored and staged), and the choice of a query's delivery."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame

from spark_eos._checkpoint.marker import Marker
from spark_eos._checks.start import Start
from spark_eos._delivery.base import Delivery, SinkQuery
from spark_eos._delivery.direct import DirectDelivery
from spark_eos._delivery.mirrored import MirroredDelivery
from spark_eos._delivery.ownership import may_become_direct, nothing_staged
from spark_eos._delivery.staged import StagedDelivery
from spark_eos._kafka.offsets import all_group_offsets
from spark_eos._pyspark_internals import StreamSource
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.errors import ConfigurationError, UnsupportedPipelineError
from spark_eos.observability.speaking import say
from spark_eos.options import ProgressTopic

_ALL: Final[tuple[type[Delivery], ...]] = (DirectDelivery, MirroredDelivery, StagedDelivery)
DELIVERIES: Final = {each.name: each for each in _ALL}
"""The deliveries by name, cheapest first."""
AUTO: Final = "auto"


def check_delivery(wanted: str, *, other_cluster: bool) -> None:
    if wanted == AUTO:
        return
    if wanted not in DELIVERIES:
        *names, last = map(repr, [AUTO, *DELIVERIES])
        raise ConfigurationError(f"delivery is {wanted!r}; it must be {', '.join(names)} or {last}")
    if (reason := DELIVERIES[wanted].rejection(other_cluster=other_cluster)) is not None:
        raise ConfigurationError(reason)


def query_of_stream(
    frame: DataFrame,
    plans: Mapping[str, str],
    sources: Sequence[StreamSource],
    wanted: str,
    settings: WriterSettings,
    start: Start,
    *,
    location: str,
    progress_topic: ProgressTopic,
    selections: Iterable[Mapping[str, str]],
    starting_offsets: Iterable[str],
) -> SinkQuery:
    """Return a stream's query, with its chosen delivery; ``plans`` are Spark's printed plans."""
    other_cluster = settings.source_client is not None
    suited = [
        each for each in DELIVERIES.values() if each.rejection(other_cluster=other_cluster) is None
    ]
    candidates = suited if wanted == AUTO else [DELIVERIES[wanted]]
    reason = candidates[0].why if wanted == AUTO else f"delivery={wanted!r} is set"
    for delivery, fallback in zip(candidates, [*candidates[1:], None], strict=True):
        try:
            delivery.check_stream(frame, plans)
            delivery.check_clusters(start, sources)
            break
        except UnsupportedPipelineError as error:
            if fallback is None or not frame.isStreaming:
                raise
            reason = error.text
    # Check the columns after the plan, because the plan may be the reason why columns are missing.
    # A missing column never changes the delivery: the column may have been forgotten, and a query
    # keeps its first delivery.
    delivery.check_columns(frame.schema, settings.topic)
    return SinkQuery(
        settings=settings,
        location=location,
        progress_topic=progress_topic,
        selections=tuple(selections),
        starting_offsets=frozenset(starting_offsets),
        sources=tuple(sources),
        delivery=delivery,
        fallback=fallback,
        why=_without_advice(reason),
        forced=delivery is not candidates[0],
    )


def _without_advice(reason: str) -> str:
    return reason.partition(". ")[0]


def delivery_of_run(
    query: SinkQuery,
    marker: Marker,
    batch_id: int,
    start: Start,
    check_first: Callable[[], None] = lambda: None,
) -> tuple[type[Delivery], str]:
    """Return the delivery of a run that begins with a batch, and why no cheaper one can write it.

    ``check_first`` checks the batch's plan.
    """
    # A query keeps the delivery with which its checkpoint was begun, unless that delivery was the
    # fallback and has written nothing.
    delivery, fallback = query.delivery, query.fallback
    why = query.why if query.forced else ""
    if fallback is None:
        return delivery, why
    begun_with_fallback = marker.delivery == fallback.name
    if marker.group_id is not None and not (
        begun_with_fallback and _may_change(query, marker, batch_id, start)
    ):
        # Only source_kafka decides between direct and mirrored: the run refuses a checkpoint that
        # was begun with the other one.
        return (fallback if begun_with_fallback else delivery), why
    try:
        check_first()
    except UnsupportedPipelineError as error:
        reason = error.text
        say(f"group {query.settings.group_id}: delivery={fallback.name}, since {reason}")
        return fallback, _without_advice(reason)
    return delivery, why


def _may_change(query: SinkQuery, marker: Marker, batch_id: int, start: Start) -> bool:
    """Return True if a query that began as staged may become direct; its run checks this again."""
    group_id, topic = query.settings.group_id, query.progress_topic.name
    if not may_become_direct(marker, group_id, query.delivery.name, batch_id):
        return False
    offsets = all_group_offsets(start.target, group_id, start.deadline())
    return nothing_staged(offsets, topic)
