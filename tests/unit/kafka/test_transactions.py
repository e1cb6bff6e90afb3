"""What TxnOffsetCommit's answers say."""

import pytest

from spark_eos._client.error_codes import Verdict, code_name
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import OffsetCommitAnswer


@pytest.mark.proves("error-134")
def test_134_is_the_drafts_unassigned_partition_in_this_answer_only() -> None:
    answer = OffsetCommitAnswer(
        6, {TopicPartition("orders", 0): 0, TopicPartition("orders", 1): 134}
    )
    assert answer.verdict is Verdict.REJECTED
    assert str(answer) == "orders-1: 134 UNASSIGNED_PARTITION"
    assert code_name(134) == "134 GROUP_DELETION_FAILED"
    assert code_name(135) == "135 STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED"


def test_an_answer_about_many_partitions_names_some() -> None:
    answer = OffsetCommitAnswer(6, {TopicPartition("orders", n): 113 for n in range(690)})
    assert str(answer).startswith("orders-0: 113 STALE_MEMBER_EPOCH, orders-1: 113")
    assert str(answer).endswith(", orders-19: 113 STALE_MEMBER_EPOCH, and 670 more")
