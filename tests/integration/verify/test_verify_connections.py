"""The verifier, when the cluster is slow to answer or does not answer at all."""

from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from spark_eos._client.error_codes import Code
from spark_eos.errors import DeadlineExceededError, VerificationError
from spark_eos.verify import Kind, Verdict
from support.expecting import compared_with, parquet
from support.flow import Flow
from support.planting import ALL, Writer, counts, fill, look
from support.proxy import KafkaProxy, broker_that_is_away
from support.proxy_faults import CutAfter, CutBefore, Fault, Rewrite


@pytest.fixture
def sound(proxied_flow: Flow) -> Flow:
    fill(proxied_flow)
    Writer(proxied_flow).write(ALL, {0: 5, 1: 5})
    return proxied_flow


def _coordinator(code: int) -> Fault:
    return Rewrite(lambda _, answer: setattr(answer.coordinators[0], "error_code", code))


def _group(code: int) -> Fault:
    return Rewrite(lambda _, answer: setattr(answer.groups[0], "error_code", code))


def _transactions(code: int) -> Fault:
    def refuse(_request: Any, answer: Any) -> None:
        if hasattr(answer, "error_code"):
            answer.error_code, answer.transaction_states = code, []
        for state in answer.transaction_states:
            state.error_code = code

    return Rewrite(refuse)


def _partition(code: int) -> Fault:
    return Rewrite(
        lambda _, answer: setattr(answer.groups[0].topics[0].partitions[0], "error_code", code)
    )


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (OffsetFetchRequest, CutBefore()),
        (OffsetFetchRequest, CutAfter()),
        (OffsetFetchRequest, _group(Code.NOT_COORDINATOR)),
        (OffsetFetchRequest, _group(Code.COORDINATOR_LOAD_IN_PROGRESS)),
        (OffsetFetchRequest, _partition(Code.UNSTABLE_OFFSET_COMMIT)),
        (FindCoordinatorRequest, _coordinator(Code.COORDINATOR_NOT_AVAILABLE)),
    ],
)
def test_answers_about_the_group_that_come_later(
    sound: Flow, proxy: KafkaProxy, message: Any, fault: Fault
) -> None:
    rule = proxy.on(message, fault, times=3)
    findings = look(sound)
    assert findings.verdict is Verdict.SOUND
    assert [(one.committed, one.end) for one in findings.group] == [(5, 5), (5, 5)]
    assert len(rule.hits) == 3


@pytest.mark.slow
@pytest.mark.parametrize("message", [ListTransactionsRequest, DescribeTransactionsRequest])
def test_transactions_that_a_coordinator_reports_later(
    sound: Flow, proxy: KafkaProxy, message: Any
) -> None:
    open_one = Writer(sound, "open")
    open_one.begin([], {0: 5})
    rule = proxy.on(message, _transactions(Code.COORDINATOR_LOAD_IN_PROGRESS), times=3)
    asked: dict[str, Any] = {"prefix": open_one.transactional_id, "group_id": None, "timeout": 3}
    assert counts(look(sound, **asked)) == {Kind.OPEN: 1}
    assert len(rule.hits) == 3
    rule = proxy.on(message, _transactions(Code.COORDINATOR_NOT_AVAILABLE), times=None)
    with pytest.raises(DeadlineExceededError, match=r"open trans.*COORDINATOR_NOT_AVAILABLE"):
        look(sound, **asked)
    rule.times = 0
    open_one.abort()


def test_a_group_without_a_coordinator(sound: Flow, proxy: KafkaProxy) -> None:
    proxy.on(FindCoordinatorRequest, _coordinator(Code.COORDINATOR_NOT_AVAILABLE), times=None)
    with pytest.raises(DeadlineExceededError, match=r"COORDINATOR_NOT_AVAILABLE.*--timeout"):
        look(sound, timeout=1)


@pytest.mark.parametrize("refused", [_group, _partition])
def test_a_group_whose_offsets_are_refused(
    sound: Flow, proxy: KafkaProxy, tmp_path: Path, refused: Any
) -> None:
    file = parquet(tmp_path / "e.parquet", [(f"{p}-{offset}", "v") for p, offset in ALL])
    assert compared_with(sound, file, group_id=sound.group_id).verdict is Verdict.SOUND
    proxy.on(OffsetFetchRequest, refused(Code.GROUP_AUTHORIZATION_FAILED), times=None)
    message = f"{sound.group_id}.*GROUP_AUTHORIZATION_FAILED"
    with pytest.raises(VerificationError, match=message):
        look(sound)
    with pytest.raises(VerificationError, match=message):
        compared_with(sound, file, group_id=sound.group_id)


@pytest.mark.slow
def test_a_broker_that_is_away_is_named_and_all_else_is_judged(
    sound: Flow, proxy: KafkaProxy, tmp_path: Path
) -> None:
    open_one = Writer(sound, "open")
    file = parquet(tmp_path / "e.parquet", [(f"{p}-{offset}", "v") for p, offset in ALL])
    with broker_that_is_away(proxy, silent=True) as port:
        compared = compared_with(sound, file, prefix=f"open-{sound.name}")
        open_one.begin([], {0: 5})
        findings = look(sound, prefix=f"open-{sound.name}", group_id=None, timeout=4)
    open_one.abort()
    for found in (compared, findings):
        assert list(found.unjudged.values()) == [1]
        assert f"broker 2 (127.0.0.1:{port}) does not answer" in " ".join(found.notes)
    assert compared.verdict is Verdict.UNJUDGED
    assert {each.detail.partition(",")[0] for each in findings.found[Kind.OPEN].examples} >= {
        open_one.transactional_id
    }


@pytest.mark.parametrize("which", ["source", "target"])
def test_a_partition_whose_leader_is_away_can_not_be_judged(
    sound: Flow, proxy: KafkaProxy, which: str
) -> None:
    """librdkafka then has an invalid offset for it, and no error, if other leaders answer."""
    topic = getattr(sound, which)
    with (
        broker_that_is_away(proxy, silent=True, leads=(topic, 0)),
        pytest.raises(DeadlineExceededError, match=rf"offsets of {topic}:0.*--timeout"),
    ):
        look(sound, group_id=None, timeout=2)
