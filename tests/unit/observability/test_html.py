"""What a notebook shows of a report, a sink and a status: tables, escaped, without secrets."""

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from spark_eos import BatchReport, ExactlyOnceSink, PartitionReport, Status
from spark_eos._admin.status import BrokerStatus, ClusterStatus, PartitionStatus
from spark_eos._kafka.groups import DescribedGroup, DescribedMember
from spark_eos._kafka.topic_partition import TopicPartition
from support.reports import REPORT
from support.sinks import arguments

HOSTILE = "<script>alert('x')</script>\x1b&"
SHOWN = "<script>alert('x')</script>\\x1b&"


class _Reader(HTMLParser):
    """Rows of tables and lines of text, as a browser has them; every tag must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.lines: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"table", "thead", "tbody", "tr", "th", "td", "div", "b"}
        # No colors, or dark themes would have dark on dark.
        assert attrs in ([], [("style", "text-align: left")], [("style", "text-align: right")])
        self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"th", "td"}:
            self.tables[-1][-1].append("")
        elif tag == "div":
            self.lines.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self._open or "th" in self._open:
            self.tables[-1][-1][-1] += data
        else:
            self.lines[-1] += data


def _read(thing: BatchReport | ExactlyOnceSink | Status) -> _Reader:
    return _Reader(thing._repr_html_())


def _columns(table: list[list[str]]) -> dict[str, str]:
    head, row = table
    return dict(zip(head, row, strict=True))


def test_a_report_has_its_numbers() -> None:
    shown = _read(REPORT)
    assert shown.lines[0] == "Batch 7 of group orders and more"
    counts, letters, times, lost, partitions = shown.tables
    assert _columns(counts) == {
        "delivery": "direct",
        "rows written": "5",
        "rows skipped": "1",
        "dead letters": "3",
        "bytes written": "50",
        "transactions": "2",
        "attempts": "2",
    }
    assert letters == [["dead letters", "rows"], ["error", "3"]]
    assert _columns(times) == {"total": "80.0", "job": "60.0", "produce": "20.0"}
    assert "Records of 1970-01-01T00:00:00Z, by 1 ms later: 4 written" in shown.lines
    assert lost[1:] == [["a", "0", "10", "2"]]
    assert partitions[1:] == [
        ["a", "0", "10", "14", "3", "1", "0"],
        ["a", "1", "-", "2", "2", "0", "0"],
    ]


def test_a_report_of_many_partitions_stays_short() -> None:
    many = tuple(PartitionReport("a", p, 0, 1, 1, 0, 1) for p in range(1_500))
    shown = _read(replace(REPORT, partitions=many, lost=(), dead_letters={}))
    assert len(shown.tables) == 3
    assert len(shown.tables[-1]) == 21
    assert shown.lines[-1] == "and 1,480 more source partitions"


def test_names_can_not_become_markup() -> None:
    part = PartitionReport(HOSTILE, 0, 0, 1_234, 1, 0, 1)
    shown = _read(replace(REPORT, group_id=HOSTILE, partitions=(part,)))
    assert shown.lines[0] == f"Batch 7 of group {SHOWN}"
    assert shown.tables[-1][1][:4] == [SHOWN, "0", "0", "1,234"]


def test_a_sink_keeps_its_secrets(tmp_path: Path) -> None:
    sink = ExactlyOnceSink(
        **arguments(
            kafka={
                "bootstrap.servers": "h:1",
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": "s3cret",
            },
            source_kafka={
                "bootstrap.servers": "far:1",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "bob",
                "sasl.password": "pa55",
            },
            group_id=HOSTILE,
            checkpoint_location=str(tmp_path),
            dead_letter_topic="letters",
        )
    )
    html = sink._repr_html_()
    assert "s3cret" not in html
    assert "pa55" not in html
    (table,) = _Reader(html).tables
    rows = dict(table[1:])
    assert rows["group"] == SHOWN
    assert rows["target topic"] == "as the rows say"
    assert rows["delivery"] == "auto, before write"
    assert rows["checkpoint"] == str(tmp_path)
    assert "h:1" in rows["kafka"]
    assert "SASL_SSL SCRAM-SHA-512 as alice" in rows["kafka"]
    assert "far:1" in rows["source_kafka"]
    assert rows["dead-letter topic"] == "letters"


def test_a_status_has_what_the_command_shows() -> None:
    member = DescribedMember(
        "m-1", "spark-eos-0", HOSTILE, "/10.0.0.1", 3, (TopicPartition("orders", 0),)
    )
    status = Status(
        group_id="g<b>",
        prefix="spark-eos",
        taken_at=0.0,
        group=DescribedGroup(
            stable=True, members=(member,), state="Stable", epoch=3, assignment_epoch=3
        ),
        partitions=(PartitionStatus("orders", 0, 1_000, 1_200, 1_201, "m-1"),),
        mirrored=(),
        staged=None,
        foreign=(TopicPartition("orders", 1),),
        transactions=(),
        held_back=(),
        cluster=ClusterStatus((BrokerStatus(1, 6, 1),), 2, 6, None),
    )
    shown = _read(status)
    assert shown.lines == [
        "Group g<b>: Stable, group epoch 3, assignment epoch 3, 1 member, lag 200",
        "1 offset with a text that is not spark-eos', set by another client: orders 1",
        "No open transactions of prefix spark-eos and group g<b>.",
        "Offsets are committed by topic id (KIP-1319): TxnOffsetCommit v6.",
    ]
    members, partitions, brokers = shown.tables
    assert members[1] == ["spark-eos-0", "3", SHOWN, "10.0.0.1", "orders 0"]
    assert _columns(partitions)["lag"] == "200"
    assert _columns(brokers)["TxnOffsetCommit"] == "6"
