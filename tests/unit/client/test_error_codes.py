"""Verdicts on error codes."""

import random

import pytest

from spark_eos._client.error_codes import Code, Verdict, remedy, verdict
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import OffsetCommitAnswer
from spark_eos.acls import Principal

# The table of docs/protocol.md; test_error_rows.py has what each verdict does.
_ROWS = {
    "100 UNKNOWN_TOPIC_ID": Verdict.RETRY,
    "3 UNKNOWN_TOPIC_OR_PARTITION": Verdict.RETRY,
    "14 COORDINATOR_LOAD_IN_PROGRESS": Verdict.RETRY,
    "51 CONCURRENT_TRANSACTIONS": Verdict.RETRY,
    "48 INVALID_TXN_STATE": Verdict.RETRY,
    "15 COORDINATOR_NOT_AVAILABLE": Verdict.REDISCOVER,
    "16 NOT_COORDINATOR": Verdict.REDISCOVER,
    "69 GROUP_ID_NOT_FOUND": Verdict.REJECTED,
    "113 STALE_MEMBER_EPOCH": Verdict.REJECTED,
    "134 UNASSIGNED_PARTITION": Verdict.REJECTED,
    "25 UNKNOWN_MEMBER_ID": Verdict.REJECTED,
    "82 FENCED_INSTANCE_ID": Verdict.REJECTED,
    "110 FENCED_MEMBER_EPOCH": Verdict.REJECTED,
    "22 ILLEGAL_GENERATION": Verdict.REJECTED,
    "47 INVALID_PRODUCER_EPOCH": Verdict.FENCED,
    "49 INVALID_PRODUCER_ID_MAPPING": Verdict.FENCED,
    "90 PRODUCER_FENCED": Verdict.FENCED,
    "29 TOPIC_AUTHORIZATION_FAILED": Verdict.REFUSED,
    "30 GROUP_AUTHORIZATION_FAILED": Verdict.REFUSED,
    "53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED": Verdict.REFUSED,
    "12 OFFSET_METADATA_TOO_LARGE": Verdict.REFUSED,
    "24 INVALID_GROUP_ID": Verdict.REFUSED,
    "42 INVALID_REQUEST": Verdict.REFUSED,
    "35 UNSUPPORTED_VERSION": Verdict.REFUSED,
    "-1 UNKNOWN_SERVER_ERROR": Verdict.REFUSED,
    "12345 UNKNOWN": Verdict.REFUSED,
}


@pytest.mark.parametrize("row", _ROWS)
def test_each_row_has_its_verdict_next_to_an_accepted_one(row: str) -> None:
    codes = {
        TopicPartition("orders", 0): 0,
        TopicPartition("orders", 1): int(row.partition(" ")[0]),
    }
    answer = OffsetCommitAnswer(6, codes)
    assert answer.verdict is _ROWS[row]
    assert str(answer) == f"orders-1: {row}"


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
