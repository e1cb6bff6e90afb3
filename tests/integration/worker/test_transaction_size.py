"""Transactions of a task that begins with small ones, as after an outage."""

from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.transaction_size import TransactionSize
from support.flow import Flow
from support.members import started, writer_settings
from support.writing import row_batch, task_outcome


def test_a_tasks_transactions_grow_while_they_finish_in_time(flow: Flow) -> None:
    batches = iter([row_batch(flow, 0, *range(first, first + 100)) for first in (0, 100, 200)])
    with started(flow) as membership:
        outcome = task_outcome(
            membership, writer_settings(flow), batches, size=TransactionSize(divisor=1_000), end=300
        )
    partition = outcome.partitions[TopicPartition(flow.source, 0)]
    assert (partition.rows, partition.next_offset) == (300, 300)
    # At most 1, 4, 16, 63, 250 and 1,000 rows each, and fewer at the end of an Arrow batch.
    assert outcome.counters.transactions <= 12
    assert sorted(flow.values()) == sorted(f"0/{offset}" for offset in range(300))
