"""Topics and partitions that are added to the source while the query runs."""

import pytest

from spark_eos.errors import RecordsLostError
from support.flow import Flow
from support.planting import remove
from support.runs import running


def test_a_topic_added_to_a_running_query_is_read_from_the_start(flow: Flow) -> None:
    other = f"{flow.source}-b"
    with running(flow) as runs:
        runs.batch(5, 5)
        # As with a pattern that it matches.
        flow.broker.create_topic(other, 1)
        added = runs.batch(6, 6, also={other: (4,)})
        assert (added.attempts, added.rows_written, added.rows_skipped) == (1, 6, 0)
        assert runs.batch(7, 7, also={other: (5,)}).rows_written == 3
    # Its offsets are the group's, as the others are.
    with running(flow) as runs:
        report = runs.batch(7, 7, also={other: (5,)})
    assert (report.rows_written, report.rows_skipped) == (0, 19)
    # Its rows are called as those of partition 0.
    assert sorted(flow.values()) == sorted(
        [*(f"{p}/{n}" for p in (0, 1) for n in range(7)), *(f"0/{n}" for n in range(5))]
    )


def test_deleted_records_of_an_added_partition_are_named(flow: Flow) -> None:
    flow.produce(range(5), partition=0)
    with running(flow) as runs:
        runs.batch(4, 0)
        flow.broker.add_partitions(flow.source, 3)
        flow.produce(range(5), partition=2)
        remove(flow, flow.source, 2, before=3)
        with pytest.raises(RecordsLostError, match=f"{flow.source}-2 offsets 0 to 2"):
            runs.batch(5, 0, 5)
        assert flow.merged_values() == ["0/0", "0/1", "0/2", "0/3"]
    with running(flow, checkpoint=runs.checkpoint, fail_on_data_loss=False) as runs:
        report = runs.batch(5, 0, 5, rows=lambda p, offsets: [*offsets][3 if p == 2 else 0 :])
    assert [str(lost) for lost in report.lost] == [f"{flow.source}-2 offsets 0 to 2"]
    assert flow.committed() == {0: 5, 1: 0, 2: 5}
