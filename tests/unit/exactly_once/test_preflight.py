"""Required features of brokers."""

import pytest

from spark_eos import errors
from spark_eos._checks.preflight import offset_commit_version
from spark_eos._kafka.cluster import BrokerFeatures
from spark_eos.acls import Principal

_CLUSTER = Principal(None, "a:1")
_HEARTBEAT, _TXN_OFFSET_COMMIT = 68, 28


@pytest.mark.parametrize(("greatest", "expected"), [(5, 5), (6, 6), (7, 6)])
def test_the_newest_version_that_both_speak_is_sent(greatest: int, expected: int) -> None:
    features = BrokerFeatures(
        {_HEARTBEAT: 1, _TXN_OFFSET_COMMIT: greatest}, {"transaction.version": 2}
    )
    assert offset_commit_version(features, _CLUSTER) == expected


@pytest.mark.parametrize(
    ("versions", "level", "words"),
    [
        ({_HEARTBEAT: 1, _TXN_OFFSET_COMMIT: 4}, 2, r"TxnOffsetCommit 5.*Kafka 4\.0 or newer"),
        ({_TXN_OFFSET_COMMIT: 5}, 2, "no ConsumerGroupHeartbeat"),
        ({_HEARTBEAT: 1, _TXN_OFFSET_COMMIT: 6}, 1, r"transaction\.version=1.*upgrade"),
        ({_HEARTBEAT: 1, _TXN_OFFSET_COMMIT: 6}, None, r"transaction\.version=0"),
    ],
)
def test_brokers_that_are_too_old(versions: dict[int, int], level: int | None, words: str) -> None:
    features = {} if level is None else {"transaction.version": level}
    with pytest.raises(errors.UnsupportedBrokerError, match=words):
        offset_commit_version(BrokerFeatures(versions, features), _CLUSTER)
