"""A report, a sink and a status in a notebook: escaped text without secrets."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from spark_eos import BatchReport, ExactlyOnceSink, PartitionReport, Status
from spark_eos._kafka.groups import DescribedGroup, DescribedMember
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._status.cluster import BrokerStatus, ClusterStatus
from spark_eos._status.group_progress import PartitionStatus
from support.reports import REPORT
from support.sinks import arguments

HOSTILE = "<script>alert('x')</script>\x1b&"
SHOWN = "<script>alert('x')</script>\\x1b&"


class _Reader(HTMLParser):
    """The text that a browser shows; the only markup is for styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert (tag, [name for name, _ in attrs]) in [("pre", ["style"]), ("span", ["style"])]
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def _read(thing: BatchReport | ExactlyOnceSink | Status) -> list[list[str]]:
    """The parts of each line, separated by more than one space."""
    lines = _Reader(thing._repr_html_()).text.splitlines()
    return [re.split(r"  +", line.strip()) for line in lines if line.strip(" ─")]


def test_a_report() -> None:
    hostile = PartitionReport(HOSTILE, 0, None, 1_234, 1, 0, 1)
    many = tuple(PartitionReport("a", p, 0, 1, 1, 0, 1) for p in range(1_500))
    shown = _read(replace(REPORT, group_id=HOSTILE, partitions=(hostile, *many)))
    assert shown[:3] == [
        [f"Batch 7 of group {SHOWN}"],
        [
            "delivery",
            "rows written",
            "rows skipped",
            "dead letters",
            "bytes written",
            "transactions",
            "attempts",
        ],
        ["direct", "5", "1", "3", "50", "2", "2"],
    ]
    for line in (
        ["error", "3"],
        ["Records of 1970-01-01T00:00:00Z written as 1 ms later: 4"],
        ["80.0", "60.0", "20.0"],
        ["Deleted before they were read:"],
        ["a", "0", "10", "2"],
        [SHOWN, "0", "-", "1,234", "1", "0", "0"],
    ):
        assert line in shown
    assert shown[-2:] == [
        ["a", "18", "0", "1", "1", "0", "0"],
        ["and 1,481 more source partitions"],
    ]


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
    assert "s3cret" not in sink._repr_html_()
    assert "pa55" not in sink._repr_html_()
    rows = dict(row for row in _read(sink) if len(row) == 2)
    assert rows["group"] == SHOWN
    assert rows["target topic"] == "as the rows say"
    assert rows["delivery"] == "auto, before write"
    assert "h:1" in rows["kafka"]
    assert "SASL_SSL SCRAM-SHA-512 as alice" in rows["kafka"]
    assert "far:1" in rows["source_kafka"]
    assert rows["dead-letter topic"] == "letters"


def test_a_sink_shows_no_password_of_its_checkpoint() -> None:
    sink = ExactlyOnceSink(
        **arguments(
            kafka={"bootstrap.servers": "h:1"},
            group_id="g",
            checkpoint_location="sftp://orders:s3cret@host/cp",
        )
    )
    rows = dict(row for row in _read(sink) if len(row) == 2)
    assert rows["checkpoint"] == "sftp://***@host/cp"


def test_a_status_has_what_the_command_shows() -> None:
    member = DescribedMember(
        "m-1", "spark-eos-0", HOSTILE, "/10.0.0.1", 3, (TopicPartition("orders", 0),)
    )
    status = Status(
        group_id="g<b>",
        prefix="spark-eos",
        taken_at=0.0,
        group=DescribedGroup(members=(member,), state="Stable", epoch=3, assignment_epoch=3),
        partitions=(PartitionStatus("orders", 0, 1_000, 1_200, 1_201, "m-1"),),
        mirrored=(),
        staged=None,
        foreign=(TopicPartition("orders", 1),),
        transactions=(),
        held_back=(),
        cluster=ClusterStatus((BrokerStatus(1, 6, 1),), 2, 6, None),
    )
    shown = _read(status)
    for line in (
        ["Group g<b>: Stable, group epoch 3, assignment epoch 3, 1 member, lag 200"],
        ["spark-eos-0", "3", SHOWN, "10.0.0.1", "orders 0"],
        ["orders", "0", "1,000", "1,200", "1,201", "200", "spark-eos-0"],
        ["1 offset with metadata set by another client, not by spark-eos: orders 1"],
        ["No open transactions of prefix spark-eos and group g<b>."],
        ["1", "6", "1", "2"],
        ["Offsets are committed by topic id (KIP-1319): TxnOffsetCommit v6."],
    ):
        assert line in shown
