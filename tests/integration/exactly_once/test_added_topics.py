"""Topics and partitions that are added to the source while the query runs."""

from support.flow import Flow
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
    # Its rows have the same values as the rows of partition 0.
    assert sorted(flow.values()) == sorted(
        [*(f"{p}/{n}" for p in (0, 1) for n in range(7)), *(f"0/{n}" for n in range(5))]
    )
