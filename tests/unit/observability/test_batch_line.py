"""A batch in a few words, which only names what there is."""

from dataclasses import replace

from spark_eos.observability.speaking import batch_line
from support.reports import REPORT


def test_all_that_there_may_be() -> None:
    report = replace(REPORT, rows_written=10_000)
    assert batch_line(report) == (
        "group orders and more, batch 7: 10,000 rows in 0.08 s, 1 row skipped, 3 dead letters, "
        "2 source records lost, 2 attempts"
    )


def test_nothing_but_rows() -> None:
    report = replace(REPORT, rows_skipped=0, dead_letters={}, lost=(), attempts=1)
    assert batch_line(report) == "group orders and more, batch 7: 5 rows in 0.08 s"
