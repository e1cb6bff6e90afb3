"""Chooses a query's road to Kafka: direct, mirrored from another cluster, or staged in files."""

import logging
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame

from spark_eos._driver.checkpoint_note import DIRECT, MIRRORED, STAGED
from spark_eos._spark.columns import check_columns, check_payload
from spark_eos._spark.connect import is_connect
from spark_eos._spark.narrow_plan import check_sources_seen, check_stream
from spark_eos._spark.runtime import QueryRuntime
from spark_eos._spark.stream_sources import check_staged_sources, sources_of
from spark_eos.errors import ConfigurationError, UnsupportedPipelineError

logger = logging.getLogger(__name__)

AUTO: Final = "auto"
_CHOICES: Final = (AUTO, DIRECT, MIRRORED, STAGED)


def check_delivery(delivery: str, *, other_cluster: bool) -> None:
    """Refuses a value of ``delivery`` that is none, or is not for this source."""
    if delivery not in _CHOICES:
        raise ConfigurationError(
            f"delivery is {delivery!r}; it must be 'auto', 'direct', 'mirrored' or 'staged'"
        )
    if delivery == MIRRORED and not other_cluster:
        raise ConfigurationError(
            "delivery='mirrored' is for a source in another cluster: give its client settings as "
            "source_kafka, or leave delivery out"
        )
    if delivery == DIRECT and other_cluster:
        raise ConfigurationError(
            "delivery='direct' commits offsets in the cluster that is read, and source_kafka is "
            "another one: use delivery='mirrored', which refuses what is not narrow just the same"
        )


def delivery_of_stream(
    frame: DataFrame,
    delivery: str,
    default_topic: str | None,
    group_id: str,
    *,
    other_cluster: bool = False,
) -> str:
    """Checks a streaming DataFrame, and chooses its road."""
    reason = "delivery='staged'"
    if delivery != STAGED:
        try:
            # The plan first: what it lacks may be why columns are missing.
            check_stream(frame, lineage_follows=not is_connect(frame))
            check_columns(frame.schema, default_topic)
        except UnsupportedPipelineError as error:
            if delivery in (DIRECT, MIRRORED) or not frame.isStreaming:
                raise
            reason = str(error)
        else:
            if other_cluster:
                return MIRRORED
            return DIRECT
    check_payload(frame.schema, default_topic)
    if not frame.isStreaming:
        raise UnsupportedPipelineError(
            "the DataFrame is not a streaming DataFrame; read it with readStream or sink.read"
        )
    sources = sources_of(frame)
    check_staged_sources(sources)
    if is_connect(frame):
        check_sources_seen(frame, sources)
    logger.info("group %s: delivery=staged, since %s", group_id, reason)
    return STAGED


def delivery_of_run(
    delivery: str, wanted: str, runtime: QueryRuntime, check_first: Callable[[], None]
) -> str:
    """The road of a run: a query keeps the one on which its checkpoint was begun."""
    if wanted != AUTO or delivery == STAGED:
        return delivery
    note = runtime.offset_log.note()
    if note.group_id is not None:
        # Between direct and mirrored source_kafka decides, and nothing else: the run refuses a
        # checkpoint of the other one.
        return STAGED if note.delivery == STAGED else delivery
    try:
        check_first()
    except UnsupportedPipelineError as error:
        logger.info("delivery=staged, since %s", error)
        return STAGED
    return delivery
