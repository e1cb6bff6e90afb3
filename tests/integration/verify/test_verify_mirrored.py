"""The verifier on a query that reads from one cluster and writes to another: two real brokers."""

from collections.abc import Mapping
from typing import Any

import pytest

from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import (
    ConfigurationError,
    DeadlineExceededError,
    TopicNotFoundError,
    VerificationError,
)
from spark_eos.testing import EmbeddedKafka
from spark_eos.verify import Kind
from support import groups
from support.mirroring import MirroredFlow, mirrored_run
from support.planting import (
    ALL,
    ENDS,
    MATCHINGS,
    Writer,
    counts,
    examples,
    fill,
    judged,
    look,
    set_offsets,
)


@pytest.fixture
def flow(filled_mirrored_flow: MirroredFlow) -> MirroredFlow:
    """A flow whose source has records, with a progress topic."""
    return filled_mirrored_flow


def test_each_kind_of_finding(flow: MirroredFlow) -> None:
    writer = Writer(flow)
    writer.begin([(1, 0)])
    writer.abort()
    written = [s for s in [*ALL, (0, 3), (0, 5)] if s not in [(0, 1), (1, 0)]]
    # Partition 1 has no offset yet.
    writer.write(written, {0: 5})
    found = {Kind.LOST: 1, Kind.DUPLICATE: 1, Kind.PHANTOM: 1}
    assert counts(look(flow)) == {**found, Kind.WITHOUT_OFFSET: 4, Kind.UNPROCESSED: 5}
    writer.write([], {1: 3})
    for matching in MATCHINGS:
        findings = look(flow, **matching)
        assert counts(findings) == {
            **found,
            Kind.LOST: 2,
            Kind.WITHOUT_OFFSET: 2,
            Kind.UNPROCESSED: 2,
        }
        assert findings.found[Kind.LOST].parts == {"none": 1, "aborted": 1}
        assert [one[0] for one in examples(findings, Kind.WITHOUT_OFFSET)] == ["1:3", "1:4"]
    writer.write([], {1: 9})
    findings = judged(flow, {**found, Kind.LOST: 2, Kind.BEYOND_END: 1})
    assert examples(findings, Kind.BEYOND_END) == [("1:9", [], "the input ends at 5")]


@pytest.mark.slow
def test_open_transactions(flow: MirroredFlow) -> None:
    set_offsets(flow, {0: 5})
    Writer(flow).write(ALL[:5])
    first, second = Writer(flow, "first"), Writer(flow, "second")
    first.begin([], {0: 5})
    # The first offset of this one: the broker does not name it unless it is asked for it.
    second.begin(ALL[5:], {1: 5})
    findings = look(flow, timeout=1)
    assert findings.count(Kind.OPEN) == 3
    details = sorted(detail for _, _, detail in examples(findings, Kind.OPEN))
    assert details == [
        "last stable offset 0, end 5",
        f"offset of group {flow.group_id} in {flow.progress}:0 is about to change",
        f"offset of group {flow.group_id} in {flow.progress}:1 is about to change",
    ]
    prefixed = look(flow, timeout=1, group_id=None, prefix="second-")
    assert "second-" in examples(prefixed, Kind.OPEN)[1][2]
    first.abort()
    second.commit()
    assert counts(look(flow)) == {}


def test_a_topic_of_the_same_name_in_both_clusters(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    for topic, partitions in ((flow.progress, flow.partitions), (flow.source, 3)):
        flow.broker.create_topic(topic, partitions)
    fill(flow)
    writer = Writer(flow)
    same: dict[str, Any] = {"outputs": [flow.source]}
    writer.write([*ALL[:2], *ALL[3:], ALL[9]], ENDS, topic=flow.source)
    for matching in MATCHINGS:
        findings = judged(flow, {Kind.LOST: 1, Kind.DUPLICATE: 1}, **same, **matching)
        assert (findings.records_in, findings.records_out) == (10, 10)
        assert examples(findings, Kind.LOST)[0][0] == "0:2"
        assert examples(findings, Kind.DUPLICATE)[0][:2] == ("1:4", ["1:4", "1:5"])
    writer.begin(ALL[:1], topic=flow.source)
    writer.abort()
    exposed = look(flow, isolation_level="read_uncommitted", **same)
    assert counts(exposed)[Kind.ABORTED_READ] == 1
    with pytest.raises(ConfigurationError, match=r"both input and output.*source_kafka"):
        look(flow, source_kafka=None, **same)


def test_several_topics_of_which_one_is_judged(flow: MirroredFlow) -> None:
    _set(flow, {1: 5, 0: 7}, {0: _text(flow, topic="another")})
    Writer(flow).write(ALL[:5])
    other = Writer(flow, "other")
    # The other one's offset is about to change, which is nothing to wait for.
    other.begin([], {1: 8})
    findings = judged(flow, {Kind.UNPROCESSED: 5}, timeout=60)
    assert [one.committed for one in findings.group] == [5, None]
    other.abort()


def _text(flow: MirroredFlow, **changes: Any) -> str:
    """The text of progress partition 1's offset, with parts replaced."""
    ((_, text),) = flow.group_offsets({0: 0}).values()
    before = {"cluster": flow.identity[0], "topic": flow.source, "topic_id": flow.identity[1]}
    for name, value in changes.items():
        assert before[name] in text
        text = text.replace(before[name], value)
    return text


def _set(flow: MirroredFlow, offsets: Mapping[int, int], texts: Mapping[int, str]) -> None:
    """The group's offsets of progress partitions, with their previous texts or others."""
    all_texts = {number: _text(flow) for number in offsets}
    all_texts |= texts
    groups.set_offsets(
        flow.bootstrap_servers,
        flow.group_id,
        {TopicPartition(flow.progress, number): offset for number, offset in offsets.items()},
        {TopicPartition(flow.progress, number): text for number, text in all_texts.items()},
    )


def test_offsets_of_another_cluster_are_refused(flow: MirroredFlow) -> None:
    Writer(flow).write(ALL, ENDS)
    judged(flow, {})
    _set(flow, {1: 5}, {1: _text(flow, cluster="elsewhere")})
    wanted = (
        f"{flow.progress}:1 .*{flow.source}:0 of cluster 'elsewhere', but "
        f".*points to cluster '{flow.identity[0]}'"
    )
    with pytest.raises(VerificationError, match=wanted):
        look(flow)
    # Also if it is a topic that is not looked at.
    _set(flow, {1: 5}, {1: _text(flow, cluster="elsewhere", topic="another")})
    with pytest.raises(VerificationError, match="another:0 of cluster 'elsewhere', but "):
        look(flow)
    judged(flow, {}, group_id=None)


def test_another_cluster_that_has_such_a_topic_too_is_refused(flow: MirroredFlow) -> None:
    Writer(flow).write(ALL, ENDS)
    flow.broker.create_topic(flow.source, flow.partitions)
    with pytest.raises(VerificationError, match=f"{flow.source}:.* topic id .*another cluster"):
        look(flow, source_kafka=flow.kafka)


def test_offsets_of_a_recreated_topic_are_refused(flow: MirroredFlow) -> None:
    Writer(flow).write(ALL, ENDS)
    before = flow.identity[1]
    flow.recreate(flow.source)
    fill(flow)
    del flow.identity
    old, new = (f"{i[:8]}-{i[8:12]}-{i[12:16]}-.*" for i in (before, flow.identity[1]))
    with pytest.raises(VerificationError, match=f"topic id {old} has topic id {new}recreated"):
        look(flow)


def test_a_topic_recreated_meanwhile_is_noticed(flow: MirroredFlow) -> None:
    Writer(flow).write(ALL, ENDS)
    done: list[str] = []

    def watch(what: str, _done: int, _total: int) -> None:
        if what == "Reading outputs" and not done:
            done.append(what)
            flow.recreate(flow.source)

    with pytest.raises(VerificationError, match="deleted and recreated"):
        look(flow, watch=watch)


@pytest.mark.parametrize("text", ["", "an operator's", '{"spark-eos":2,"source":["a","b"]}'])
def test_an_offset_of_unknown_meaning_is_refused(flow: MirroredFlow, text: str) -> None:
    Writer(flow).write(ALL, ENDS)
    _set(flow, {0: 5}, {0: text})
    with pytest.raises(VerificationError, match=f"in {flow.progress}:0 does not tell"):
        look(flow)


def test_a_run_with_the_checkpoint_restores_an_offsets_meaning(
    mirrored_flow: MirroredFlow,
) -> None:
    flow = mirrored_flow
    fill(flow)
    Writer(flow).write(ALL)
    # More progress partitions than source partitions.
    with mirrored_run(flow, partitions=4) as runs:
        runs.batch(5, 4, without_output=5)
    findings = judged(flow, {Kind.WITHOUT_OFFSET: 1, Kind.UNPROCESSED: 1})
    assert [one.committed for one in findings.group] == [5, 4]
    _set(flow, {1: 4}, {1: ""})
    with pytest.raises(VerificationError, match=f"in {flow.progress}:1 does not tell"):
        look(flow)
    with mirrored_run(flow, partitions=4, checkpoint=runs.checkpoint) as again:
        again.batch(5, 5, without_output=1)
    assert counts(look(flow)) == {}


def test_two_offsets_of_one_source_partition_are_refused(flow: MirroredFlow) -> None:
    _set(flow, {0: 3, 1: 5}, {})
    wanted = f"{flow.progress}:0 and {flow.progress}:1 both .* in {flow.source}:0"
    with pytest.raises(VerificationError, match=wanted):
        look(flow)


def test_a_group_that_has_no_such_offset_is_refused(flow: MirroredFlow) -> None:
    # The other is one of a query that reads the target's own cluster.
    for offsets in ({}, {TopicPartition(flow.target, 0): 5}):
        groups.set_offsets(flow.bootstrap_servers, flow.group_id, offsets)
        with pytest.raises(VerificationError, match="no committed offset that stands for a"):
            look(flow)


def test_each_topic_is_looked_for_in_its_own_cluster(
    flow: MirroredFlow, other_kafka: EmbeddedKafka
) -> None:
    Writer(flow).write(ALL, ENDS)
    with pytest.raises(TopicNotFoundError, match=flow.source):
        look(flow, source_kafka=None)
    with pytest.raises(TopicNotFoundError, match=flow.target):
        look(flow, kafka={"bootstrap.servers": other_kafka.bootstrap_servers})
    nowhere = {"bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(DeadlineExceededError, match=r"127\.0\.0\.1:1.*within 1 s"):
        look(flow, source_kafka=nowhere, timeout=1)
