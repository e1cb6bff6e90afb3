"""subscribePattern: Spark's JVM matches topic names with Java's regular expressions."""

# A pattern of sink.read must match a topic's whole name, as in Kafka's consumers. Spark's source
# reads a topic if its pattern is found anywhere in the name, or, with
# spark.sql.streaming.kafka.useDeprecatedOffsetFetching, if it matches the whole name. So Spark gets
# a pattern for which both are the same.

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from spark_eos._worker.records import TOPIC_IS_SOURCE
from spark_eos.errors import ConfigurationError

_INVALID: Final = "INVALID_PARAMETER_VALUE.PATTERN"
# A valid pattern may end in a comment ((?x) #) or a quotation (\Q), which would hide what follows.
_ENDINGS: Final = ("", "\n", r"\E", "\\E\n")


def matching(spark: SparkSession, pattern: str, names: Iterable[str]) -> set[str]:
    """Return the names in which a pattern is found, as Spark's source finds them."""
    # Spark evaluates this while planning, without a job. The empty name is there because Spark
    # compiles the pattern only if there is a row.
    rows = spark.createDataFrame(pa.table({"name": pa.array(["", *names], pa.string())}))
    try:
        matched = rows.where(F.col("name").rlike(pattern)).collect()
    except PySparkException as error:
        if error.getCondition() != _INVALID:
            raise
        raise ConfigurationError(
            f"subscribePattern {pattern!r} is not a valid Java regular expression, which Spark's "
            "Kafka source needs: see java.util.regex.Pattern"
        ) from None
    return {name for (name,) in matched if name}


class WholeNames(NamedTuple):
    """The pattern to pass to Spark, and the existing topics that it selects."""

    pattern: str
    read: set[str]
    left_out: set[str]  # Spark would also read these with the user's pattern


def whole_names(
    spark: SparkSession, pattern: str, names: Iterable[str], never: Collection[str]
) -> WholeNames:
    """Return a pattern found only in names that ``pattern`` fully matches, except ``never``."""
    # Check the user's pattern by itself: it may be valid only inside the longer pattern.
    matched = matching(spark, pattern, names)
    # Python escapes only ASCII punctuation, which Java allows.
    excluded = "|".join(map(re.escape, sorted(never)))
    for ending in _ENDINGS:
        whole = rf"\A(?!(?:{excluded})\z)(?:{pattern}{ending})\z"
        try:
            read = matching(spark, whole, matched)
        except ConfigurationError:
            continue
        return WholeNames(whole, read, matched - read - {*never})
    raise ConfigurationError(f"subscribePattern {pattern!r} is nested too deeply")


@dataclass(frozen=True)
class SourceTopics:
    """The topics that sources read, given by names, and by patterns that Spark finds in names."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()

    def among(self, spark: SparkSession, topics: Collection[str]) -> set[str]:
        """Return which of the topics the sources read, or would read."""
        read = self.names.intersection(topics)
        for pattern in self.patterns if topics else ():
            read |= matching(spark, pattern, topics)
        return set(read)

    def __or__(self, other: "SourceTopics") -> "SourceTopics":
        return SourceTopics(self.names | other.names, self.patterns | other.patterns)


def topic_is_source(columns: Iterable[str], patterns: Collection[str]) -> list[Column]:
    """Return a column that is true if the query reads a row's topic; no column without patterns."""
    # Spark evaluates the patterns, because tasks have no Java. So topics created while the query
    # runs count too.
    if not patterns or "topic" not in columns:
        return []
    topic = F.col("topic").cast("string")  # without a collation, which would change how it matches
    return [reduce(or_, map(topic.rlike, sorted(patterns))).alias(TOPIC_IS_SOURCE)]
