"""Chooses a query's delivery: direct, mirrored from another cluster, or staged in files."""

import logging
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame

from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._spark.batches import DELIVERIES, SinkDelivery
from spark_eos._spark.runtime import QueryRuntime
from spark_eos.errors import ConfigurationError, UnsupportedPipelineError, without_address

logger = logging.getLogger(__name__)

AUTO: Final = "auto"


def check_delivery(wanted: str, *, other_cluster: bool) -> None:
    """Refuses a value of ``delivery`` that is none, or is not for this source."""
    if wanted == AUTO:
        return
    if wanted not in DELIVERIES:
        raise ConfigurationError(
            f"delivery is {wanted!r}; it must be 'auto', 'direct', 'mirrored' or 'staged'"
        )
    if (reason := DELIVERIES[wanted].unsuited(other_cluster=other_cluster)) is not None:
        raise ConfigurationError(reason)


def delivery_of_stream(
    frame: DataFrame, wanted: str, settings: WriterSettings
) -> tuple[SinkDelivery, SinkDelivery | None, str]:
    """Checks a streaming DataFrame; returns its delivery, the one to fall back to, and why so."""
    other_cluster = settings.source_client is not None
    suited = [
        each for each in DELIVERIES.values() if each.unsuited(other_cluster=other_cluster) is None
    ]
    wished = suited if wanted == AUTO else [DELIVERIES[wanted]]
    reason, why = f"delivery={wanted!r}", ""
    for found, fallback in zip(wished, [*wished[1:], None], strict=True):
        try:
            found.check_stream(frame, settings.topic)
            break
        except UnsupportedPipelineError as error:
            if fallback is None or not frame.isStreaming:
                raise
            reason, why = str(error), _first_sentence(error)
    if found is not suited[0]:
        logger.info("group %s: delivery=%s, since %s", settings.group_id, found.name, reason)
    return found, fallback, why


def _first_sentence(error: UnsupportedPipelineError) -> str:
    """What a query has, without the advice about it."""
    return without_address(str(error)).partition(". ")[0]


def delivery_of_run(
    delivery: SinkDelivery,
    fallback: SinkDelivery | None,
    runtime: QueryRuntime,
    check_first: Callable[[], None],
) -> tuple[SinkDelivery, str]:
    """The delivery of a run, and what of its batch is why.

    A query keeps the delivery with which its checkpoint was begun.
    """
    if fallback is None:
        return delivery, ""
    marker = runtime.offset_log.marker()
    if marker.group_id is not None:
        # Among the others source_kafka decides, and nothing else: the run refuses a checkpoint of
        # another one.
        return (fallback if marker.delivery == fallback.name else delivery), ""
    try:
        check_first()
    except UnsupportedPipelineError as error:
        logger.info("delivery=%s, since %s", fallback.name, error)
        return fallback, _first_sentence(error)
    return delivery, ""
