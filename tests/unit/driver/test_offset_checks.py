"""Offsets that have changed while a run was in a batch."""

import pytest

from spark_eos._batch.plan import PartitionPairs
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._progress.checks import check_not_moved_back
from spark_eos.errors import OffsetsLostError


@pytest.mark.parametrize("offset", [0, 1, 5])
def test_an_offset_that_is_gone_was_moved_back(offset: int) -> None:
    source = TopicPartition("in", 0)
    with pytest.raises(OffsetsLostError, match=f"up to {offset} and now has no offset"):
        check_not_moved_back("orders", PartitionPairs(), {source: offset}, {}, [source])
