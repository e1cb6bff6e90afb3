"""A batch's report as a notebook shows it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from spark_eos._client.html_tables import html_line, html_table

if TYPE_CHECKING:  # Which shows itself with this.
    from spark_eos._batch.batch_report import BatchReport

# A batch may have thousands of source partitions.
_SHOWN: Final = 20


def report_html(report: "BatchReport") -> str:
    """Returns tables of HTML: what was written, the time by step in ms, and by source partition."""
    return "".join(_parts(report))


def _parts(report: "BatchReport") -> Iterator[str]:
    yield html_line(f"Batch {report.batch_id} of group {report.group_id}", bold=True)
    yield html_table(
        [
            "delivery",
            "rows written>",
            "rows skipped>",
            "dead letters>",
            "bytes written>",
            "transactions>",
            "attempts>",
        ],
        [
            [
                report.delivery,
                report.rows_written,
                report.rows_skipped,
                sum(report.dead_letters.values()),
                report.bytes_written,
                report.transactions,
                report.attempts,
            ]
        ],
    )
    if report.dead_letters:
        yield html_table(["dead letters", "rows>"], sorted(report.dead_letters.items()))
    if report.timestamps_moved:
        moved = f"{report.timestamps_moved:,} written"
        yield html_line(f"Records of 1970-01-01T00:00:00Z, by 1 ms later: {moved}")
    yield html_line("Milliseconds; produce, flush, offsets and commit are summed over tasks:")
    yield html_table(
        [f"{step}>" for step in report.milliseconds],
        [[f"{spent:,.1f}" for spent in report.milliseconds.values()]],
    )
    if report.lost:
        yield html_line("Deleted before they were read:")
        yield html_table(
            ["topic", "partition>", "first offset>", "offsets>"],
            [[one.topic, one.partition, one.first, one.after - one.first] for one in report.lost],
        )
    yield html_table(
        ["source topic", "partition>", "start>", "end>", "written>", "skipped>", "dead letters>"],
        [
            [p.topic, p.partition, p.start, p.end, p.rows_written, p.rows_skipped, p.dead_letters]
            for p in report.partitions[:_SHOWN]
        ],
    )
    if len(report.partitions) > _SHOWN:
        yield html_line(f"and {len(report.partitions) - _SHOWN:,} more source partitions")
