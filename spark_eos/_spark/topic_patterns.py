"""subscribePattern: names of topics are matched by Java's regular expressions, in Spark's JVM."""

# A pattern of sink.read must match a whole name, as Kafka's consumers have it. Spark's source reads
# a topic if its pattern is found anywhere in the name, or, with
# spark.sql.streaming.kafka.useDeprecatedOffsetFetching, if it matches the whole name. So Spark is
# given a pattern for which both are the same.

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
# What a valid pattern may end in would hide what follows: a comment ((?x) #), a quotation (\Q).
_ENDINGS: Final = ("", "\n", r"\E", "\\E\n")


def matching(spark: SparkSession, pattern: str, names: Iterable[str]) -> set[str]:
    """Return the names in which a pattern is found, as Spark's source finds them."""
    # Spark computes it where it plans, without a job, and compiles no pattern without a row.
    rows = spark.createDataFrame(pa.table({"name": pa.array(["", *names], pa.string())}))
    try:
        rows_found = rows.where(F.col("name").rlike(pattern)).collect()
    except PySparkException as error:
        if error.getCondition() != _INVALID:
            raise
        raise ConfigurationError(
            f"subscribePattern {pattern!r} is no regular expression of Java's, which Spark's Kafka "
            "source takes: see java.util.regex.Pattern"
        ) from None
    return {name for (name,) in rows_found if name}


class WholeNames(NamedTuple):
    """A pattern as Spark gets it, and what it chooses of the topics that there are."""

    pattern: str
    read: set[str]
    left_out: set[str]  # Spark would read these, too


def whole_names(
    spark: SparkSession, pattern: str, names: Iterable[str], never: Collection[str]
) -> WholeNames:
    """Return a pattern that is found in the names that one matches as a whole, but some."""
    # By itself, lest one be valid only within the other.
    matched = matching(spark, pattern, names)
    # Python escapes nothing but ASCII punctuation, as Java lets it.
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
    """The topics that sources read: by name, and by what Spark finds in names."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()

    def among(self, spark: SparkSession, topics: Collection[str]) -> set[str]:
        """Return those of the topics that the sources read, or would read."""
        read = self.names.intersection(topics)
        for pattern in self.patterns if topics else ():
            read |= matching(spark, pattern, topics)
        return set(read)

    def __or__(self, other: "SourceTopics") -> "SourceTopics":
        return SourceTopics(self.names | other.names, self.patterns | other.patterns)


def topic_is_source(columns: Iterable[str], patterns: Collection[str]) -> list[Column]:
    """Return the column that tells whether the query reads a row's topic, if patterns choose."""
    # By Spark, since tasks have no Java: so a topic that is created while the query runs is known.
    if not patterns or "topic" not in columns:
        return []
    topic = F.col("topic").cast("string")  # without a collation, which changes how it is matched
    return [reduce(or_, map(topic.rlike, sorted(patterns))).alias(TOPIC_IS_SOURCE)]
