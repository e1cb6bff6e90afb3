"""Verdicts on error codes."""

import random

import pytest

from spark_eos._client.error_codes import Code, Verdict, remedy, verdict
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import OffsetCommitAnswer
from spark_eos.acls import Principal
from support.pages import page

_TABLE = page("docs/protocol.md").table("Errors of TxnOffsetCommit, per partition")
# test_error_rows.py has what each verdict does.
ROWS = [*_TABLE.rows, {"code": "-1", "name": "UNKNOWN_SERVER_ERROR", "verdict": "refused"}]
# Codes that this answer doesn't have, or that are simply refused.
_ELSEWHERE = {
    Code.CLUSTER_AUTHORIZATION_FAILED,
    Code.INVALID_TRANSACTION_TIMEOUT,
    Code.UNSTABLE_OFFSET_COMMIT,
    Code.UNRELEASED_INSTANCE_ID,
    Code.TRANSACTIONAL_ID_NOT_FOUND,
    Code.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED,
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["code"])
def test_the_verdict_on_a_code_is_the_documented_one(row: dict[str, str]) -> None:
    code, name = row["code"], row["name"]
    if code == "other":
        code, name = "12345", "UNKNOWN"
    # Next to an accepted one.
    codes = {TopicPartition("orders", 0): 0, TopicPartition("orders", 1): int(code)}
    answer = OffsetCommitAnswer(6, codes)
    assert answer.verdict.name.lower() == row["verdict"]
    assert code == "0" or str(answer) == f"orders-1: {code} {name}"


def test_every_code_with_a_meaning_of_its_own_has_a_row() -> None:
    assert {str(int(code)) for code in set(Code) - _ELSEWHERE} <= {row["code"] for row in ROWS}


def test_an_answer_about_many_partitions_names_some() -> None:
    answer = OffsetCommitAnswer(6, {TopicPartition("orders", n): 113 for n in range(690)})
    assert str(answer).startswith("orders-0: 113 STALE_MEMBER_EPOCH, orders-1: 113")
    assert str(answer).endswith(", orders-19: 113 STALE_MEMBER_EPOCH, and 670 more")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (12, "offset.metadata.max.bytes"),
        (24, "another group_id"),
        (42, "the broker's log"),
        (35, "transaction.version=2"),
    ],
)
def test_what_can_be_done_about_it(code: int, words: str) -> None:
    assert words in remedy(code, [], Principal("User:alice", "localhost:9092"))


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0], Verdict.ACCEPTED),
        ([Code.CONCURRENT_TRANSACTIONS, Code.NOT_COORDINATOR], Verdict.REDISCOVER),
        ([Code.COORDINATOR_LOAD_IN_PROGRESS, Code.STALE_MEMBER_EPOCH], Verdict.REJECTED),
        # Only TxnOffsetCommit has another meaning for it.
        ([0, Code.GROUP_DELETION_FAILED], Verdict.REFUSED),
        ([Code.STALE_MEMBER_EPOCH, Code.INVALID_PRODUCER_EPOCH], Verdict.FENCED),
        ([], Verdict.REFUSED),
    ],
)
def test_the_worst_code_decides(codes: list[int], expected: Verdict) -> None:
    shuffled = random.sample(codes, len(codes))
    assert verdict(shuffled) is expected
