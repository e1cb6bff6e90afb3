"""subscribePattern: which topics a query reads, and that it never reads its own output."""

import json
import logging
from collections.abc import Collection
from contextlib import closing
from typing import Any

import hypothesis
import pytest
from confluent_kafka import Producer
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_eos import ExactlyOnceSink
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.offsets import all_group_offsets
from spark_eos._pyspark_internals import java_packages
from spark_eos._spark.topic_patterns import whole_names
from spark_eos.errors import CheckpointError, ConfigurationError
from support.apis import Api, Queries, patiently
from support.flow import Flow
from support.members import deadline
from support.mirroring import MirroredFlow
from support.queries import until
from support.sinks import arguments

NAME = "NAME"  # stands for a name of the test's own


@pytest.fixture
def api(queries: Queries) -> Api:
    """Each API in turn."""
    return Api(queries)


def _by_pattern(pattern: str) -> dict[str, str | None]:
    return {"subscribe": None, "subscribePattern": pattern}


def _produce(servers: str, topics: Collection[str]) -> None:
    """Appends its name to each topic."""
    producer = Producer({"bootstrap.servers": servers})
    for topic in topics:
        producer.produce(topic, topic)
    assert producer.flush(60) == 0


# What is read ------------------------------------------------------------------------------------

PATTERNS = [
    ("public-NAME", ["public-NAME"], ["nonpublic-NAME"]),
    (r"NAME-\p{Digit}", ["NAME-1"], ["NAME-x", "NAME-11"]),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("(eu|us)-NAME", ["eu-NAME", "us-NAME"], ["old-us-NAME"]),
            ("eu-NAME|us-NAME", ["eu-NAME", "us-NAME"], ["old-eu-NAME", "us-NAME-2"]),
            (r"\QNAME.a\E", ["NAME.a"], ["NAME-a", "old-NAME.a"]),
            (r"\QNAME.a", ["NAME.a"], ["NAME-a", "NAME.a.b"]),
            (r"(?<n>[ab])-NAME-\k<n>", ["a-NAME-a"], ["a-NAME-b", "a-NAME-a-b"]),
            ("NAME-[a-z&&[^b]]", ["NAME-a"], ["NAME-b", "NAME-ab"]),
            ("(?x) NAME -a # of one", ["NAME-a"], ["NAME-ab"]),
            (r"(?x) NAME -a # \Q", ["NAME-a"], ["NAME-ab"]),
            ("(?i)NAME-A", ["NAME-a"], ["NAME-ab"]),
            ("NAME$", ["NAME"], ["NAME-a"]),
        )
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "read", "left_out"), PATTERNS)
def test_topics_are_read_whose_whole_name_matches(
    api: Api, flow: Flow, pattern: str, read: list[str], left_out: list[str]
) -> None:
    expected = sorted(topic.replace(NAME, flow.name) for topic in read)
    topics = [*expected, *(topic.replace(NAME, flow.name) for topic in left_out)]
    for topic in topics:
        flow.broker.create_topic(topic, 1)
    _produce(flow.bootstrap_servers, topics)
    # Twice: as a new query, and with its checkpoint.
    for times in (1, 2):
        api.start(flow, read=_by_pattern(pattern.replace(NAME, flow.name))).replay()
        assert sorted(flow.values()) == sorted(expected * times)
        _produce(flow.bootstrap_servers, topics)


_TOKENS = [
    *("a", "b", "-", ".", "*", "+?", "|", "(", "(?:", "(?<n>", ")", "{1,2}", "[ab]", "[a&&[^b]]"),
    *("(?x)", "(?i)", "#", " ", "\n", "\\Q", "\\E", "\\", "$", "^", "\\z", "\\A", "(?!", "\\k<n>"),
]


@pytest.mark.slow
@hypothesis.settings(max_examples=150)
@hypothesis.given(
    st.lists(st.sampled_from(_TOKENS), max_size=7).map("".join),
    st.sets(st.text("abA-#", min_size=1, max_size=4), max_size=8),
    st.sets(st.text("ab.-", min_size=1, max_size=2), max_size=2),
)
def test_whole_names_are_those_that_java_matches(
    spark_eos_session: SparkSession, pattern: str, names: set[str], never: set[str]
) -> None:
    java = java_packages(spark_eos_session).java.util.regex.Pattern
    try:
        matches = {name for name in names if java.matches(pattern, name)}
        java.compile(pattern)
    except Exception:  # noqa: BLE001 - as py4j raises what Java does
        with pytest.raises(ConfigurationError):
            whole_names(spark_eos_session, pattern, names, never)
        return
    whole = whole_names(spark_eos_session, pattern, names, never)
    assert whole.read == matches - never
    # As Kafka's consumers look, which Spark can be told to use.
    assert {name for name in names if java.matches(whole.pattern, name)} == whole.read


def _read(session: SparkSession, options: dict[str, Any], read: dict[str, Any]) -> None:
    with closing(ExactlyOnceSink(**arguments(**options))) as sink:
        sink.read(session, **read)


@pytest.mark.parametrize(
    "pattern",
    ["NAME(", "[NAME", "NAME{1", "NAME\\", "(?<n", "a)|(?:NAME", "(?x)NAME # )\n)", 5],
)
def test_an_invalid_pattern_is_refused(queries: Queries, flow: Flow, pattern: object) -> None:
    given = pattern.replace(NAME, flow.source) if isinstance(pattern, str) else pattern
    with pytest.raises(ConfigurationError, match="subscribePattern"):
        queries.ask(_read, flow.options(), {"subscribePattern": given})


def test_topics_that_spark_would_read_are_named_once(
    flow: Flow, spark_eos_session: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    dlq, other = f"dlq-{flow.source}", f"ma{flow.source}"
    for topic in (dlq, other):
        flow.broker.create_topic(topic, 1)
    sink = ExactlyOnceSink(**arguments(**flow.options(), dead_letter_topic=dlq))
    with closing(sink), caplog.at_level(logging.WARNING, "spark_eos"):
        frame = sink.read(spark_eos_session, subscribePattern=flow.source)
        sink.write(frame.select("source", "key", "value"))
    (warning,) = [r.getMessage() for r in caplog.records if "subscribePattern" in r.getMessage()]
    assert f"Spark's own Kafka source would read them: {other}. " in warning


# What is written ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written_by",
    [
        "target",
        pytest.param("dead letters", marks=pytest.mark.slow),
        pytest.param("rows", marks=pytest.mark.slow),
    ],
)
def test_a_query_does_not_read_what_it_writes(api: Api, flow: Flow, written_by: str) -> None:
    """The topic is created, and written to, once the query has a checkpoint."""
    cases: dict[str, tuple[str, str, dict[str, Any]]] = {
        "target": (f"ma{flow.source}", "relay", {"topic": f"ma{flow.source}"}),
        "dead letters": (
            f"dlq-{flow.source}-eu",
            "rejected",
            {"dead_letter_topic": f"dlq-{flow.source}-eu"},
        ),
        "rows": (
            f"{flow.source}-checked",
            "routed",
            {"arguments": {"to": f"'{flow.source}-checked'"}},
        ),
    }
    topic, pipeline, options = cases[written_by]
    read = _by_pattern(flow.source if written_by == "rows" else f"{flow.source}.*")
    flow.produce(["a"], partition=0)
    api.start(flow, read=read).replay()
    flow.broker.create_topic(topic, 1)
    flow.produce(["b"], partition=0)
    for _ in range(3):
        api.start(flow, pipeline, read=read, **options).replay()
    assert flow.values(topic) == ["b"]


@pytest.mark.parametrize("kind", ["subscribe", "assign"])
@pytest.mark.parametrize("option", ["topic", "dead_letter_topic", "progress_topic"])
def test_a_topic_of_the_querys_own_is_not_named(
    flow: Flow, spark_eos_session: SparkSession, kind: str, option: str
) -> None:
    own = f"own-{flow.name}"
    flow.broker.create_topic(own, 1)
    chosen = own if kind == "subscribe" else f'{{"{own}": [0]}}'
    options = {**flow.options(), option: own}
    with pytest.raises(ConfigurationError, match=f"{option[:5]}.*'{own}' is a topic that"):
        _read(spark_eos_session, options, {kind: chosen})


def _found_by_another_reader(
    session: SparkSession, options: dict[str, Any], servers: str, pattern: str
) -> None:
    reader = session.readStream.format("kafka").option("subscribePattern", pattern)
    reader = reader.option("kafka.isolation.level", "read_committed")
    frame = reader.option("kafka.bootstrap.servers", servers).load()
    source = F.struct("topic", "partition", "offset").alias("source")
    with closing(ExactlyOnceSink(**arguments(**options))) as sink:
        sink.write(frame.select(source, "key", "value"))


@pytest.mark.parametrize("option", ["topic", "progress_topic"])
def test_another_reader_must_not_find_the_querys_own_topic(
    queries: Queries, flow: Flow, option: str
) -> None:
    own = f"own-{flow.name}"
    flow.broker.create_topic(own, 1)
    options = {**flow.options(), option: own}
    with pytest.raises(ConfigurationError, match=f"{option}='{own}' is a topic that the query"):
        queries.ask(
            _found_by_another_reader, options, flow.bootstrap_servers, rf"\p{{Lower}}-{flow.name}"
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delivery", "arguments_"),
    [("direct", {}), pytest.param("staged", {"shuffled": True}, marks=pytest.mark.slow)],
)
def test_a_row_for_a_topic_that_a_pattern_will_find(
    api: Api, flow: Flow, delivery: str, arguments_: dict[str, Any]
) -> None:
    later = f"{flow.source}-later"
    query = api.start(
        flow,
        "routed",
        arguments={"to": "value", **arguments_},
        available_now=False,
        read=_by_pattern(rf"\Q{flow.source}\E(-\p{{Alpha}}+)?"),
        delivery=delivery,
    )
    flow.produce([flow.target])
    until(lambda: flow.values() == [flow.target], lambda: "the first row")
    flow.broker.create_topic(later, 1)
    flow.produce([later])
    error = query.error()
    assert error is not None
    assert f"the row is for '{later}', a topic that the query reads" in error
    assert flow.written(later) == []


@pytest.mark.slow
def test_a_staged_query_whose_pattern_matches_its_progress_topic(api: Api, flow: Flow) -> None:
    progress = f"progress-{flow.name}"
    flow.broker.create_topic(progress, 3)
    options: dict[str, Any] = {
        "delivery": "staged",
        "progress_topic": progress,
        "read": _by_pattern(f"(in|progress)-{flow.name}"),
    }
    for number in range(3):
        flow.produce([number])
        api.start(flow, **options).replay()
        with flow.connections() as connections:
            offsets = all_group_offsets(connections, flow.group_id, deadline())
        assert KnownPartitions.of(offsets).staged, offsets
    assert sorted(flow.values()) == ["0", "1", "2"]


# Topics that a checkpoint has --------------------------------------------------------------------


def _check_refused(
    api: Api, flow: Flow, other: str, read: dict[str, str | None], cure: str, **options: Any
) -> None:
    """Reads two topics, and then, by pattern or name, only one of them."""
    topics = [flow.source, other]
    before = {name: given for name, given in options.items() if name != "dead_letter_topic"}
    _produce(flow.source_servers, topics)
    api.start(flow, read={"subscribe": ",".join(topics)}, **before).replay()
    written = [*topics]
    assert sorted(flow.values()) == sorted(written)
    _produce(flow.source_servers, topics)
    # Spark goes on without a topic that is no longer named, if it is to.
    for loses in (False, True) if "subscribePattern" in read else (False,):
        words = f"no longer read: {other}\\. .*{cure}"
        with pytest.raises(CheckpointError, match=words):
            patiently(api.start)(flow, read=read, **options, fail_on_data_loss=not loses)
    assert sorted(flow.values()) == sorted(written)
    # What the error advises.
    if options["delivery"] == "staged":
        first = {"subscribe": flow.source}
        api.start(flow, read=first, **options, fail_on_data_loss=False).replay()
    else:
        flow.checkpoint += "-empty"
    api.start(flow, read=read, **options).replay()
    assert sorted(flow.values()) == sorted([*written, flow.source])


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["direct", pytest.param("staged", marks=pytest.mark.slow)])
def test_a_checkpoint_with_topics_that_do_not_match(api: Api, flow: Flow, delivery: str) -> None:
    other = f"old-{flow.source}"
    flow.broker.create_topic(other, 1)
    read = _by_pattern(f"{flow.source}.*")
    _check_refused(api, flow, other, read, "whole name", delivery=delivery)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delivery", "name"),
    [
        ("direct", "subscribe"),
        pytest.param("direct", "assign", marks=pytest.mark.slow),
        pytest.param("staged", "subscribe", marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_with_topics_that_are_not_named(
    api: Api, flow: Flow, delivery: str, name: str
) -> None:
    other = f"other-{flow.source}"
    flow.broker.create_topic(other, 1)
    named = {"subscribe": flow.source, "assign": json.dumps({flow.source: [0, 1]})}
    read = {"subscribe": None, name: named[name]}
    _check_refused(api, flow, other, read, "in subscribe or assign", delivery=delivery)


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["direct", "staged"])
def test_a_checkpoint_with_topics_that_are_written_to_now(
    api: Api, flow: Flow, delivery: str
) -> None:
    other = f"{flow.source}-checked"
    flow.broker.create_topic(other, 1)
    options = {"delivery": delivery, "dead_letter_topic": other}
    _check_refused(api, flow, other, _by_pattern(f"{flow.source}.*"), "whole name", **options)


@pytest.mark.slow
def test_a_mirrored_checkpoint_with_topics_that_do_not_match(
    queries: Queries, mirrored_flow: MirroredFlow
) -> None:
    flow, other = mirrored_flow, f"old-{mirrored_flow.source}"
    flow.other.create_topic(other, 1)
    read = _by_pattern(f"{flow.source}.*")
    _check_refused(Api(queries), flow, other, read, "whole name", delivery="mirrored")
