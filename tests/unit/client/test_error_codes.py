"""Verdicts on error codes, and settings that are not shown."""

import random

import pytest

from spark_eos import errors
from spark_eos._client.error_codes import Code, Verdict, verdict
from spark_eos._client.settings import ClientSettings


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0], Verdict.ACCEPTED),
        ([0, Code.UNKNOWN_TOPIC_ID], Verdict.RETRY),
        ([Code.CONCURRENT_TRANSACTIONS, Code.NOT_COORDINATOR], Verdict.REDISCOVER),
        ([Code.COORDINATOR_LOAD_IN_PROGRESS, Code.STALE_MEMBER_EPOCH], Verdict.REJECTED),
        # Only TxnOffsetCommit has another meaning for it.
        ([0, Code.GROUP_DELETION_FAILED], Verdict.REFUSED),
        ([Code.STALE_MEMBER_EPOCH, Code.INVALID_PRODUCER_EPOCH], Verdict.FENCED),
        ([0, 29], Verdict.REFUSED),
        ([12345], Verdict.REFUSED),
        ([-1], Verdict.REFUSED),
        ([], Verdict.REFUSED),
    ],
)
def test_the_worst_code_decides(codes: list[int], expected: Verdict) -> None:
    shuffled = random.sample(codes, len(codes))
    assert verdict(shuffled) is expected


@pytest.mark.parametrize("name", ["ssl.key.password", "sasl.password", "sasl.username"])
def test_secrets_are_not_shown(name: str) -> None:
    with pytest.raises(errors.ConfigurationError) as refusal:
        ClientSettings({"bootstrap.servers": "a:1", name: "marker-secret"})
    assert "marker-secret" not in str(refusal.value)
    shown = repr(ClientSettings({"bootstrap.servers": "a:1", "client.id": "me"}))
    assert "me" in shown
