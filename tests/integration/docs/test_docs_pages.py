"""README.md and docs/: their code runs, and their generated parts are up to date."""

import json
import re
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from spark_eos.testing import EmbeddedKafka
from support.flow import consume
from support.jobs import ROOT
from support.page_commands import commands, parse_lines, parse_within, run_commands
from support.pages import end_queries, page, replaced
from support.queries import run_sparks_sink

DOCS: Final = ROOT / "docs"
PAGES: Final = ["README.md", *sorted(f"docs/{path.name}" for path in DOCS.glob("*.md"))]
# A statement that unpacks all of a page's blocks in a language: one more block would break it.
_TAKES: Final = re.compile(r'(?:=|in) code_blocks\("(\w[\w-]*)", "(\w+)"\):?$', re.MULTILINE)
TAKEN: Final = {
    (f"docs/{name}.md", language)
    for path in (ROOT / "tests").rglob("*.py")
    for name, language in _TAKES.findall(path.read_text(encoding="utf-8"))
}
_CREATING: Final = {"--topic", "--create"}
_COUNT: Final = 40


def code_of(path: str) -> list[tuple[str, str]]:
    """Language and code of a page's blocks that no other test takes, in reading order."""
    return [
        (language, code)
        for language, code in page(path).fences
        if language in {"python", "sh"} and (path, language) not in TAKEN
        # test_walks.py runs it in a process of its own.
        if "EmbeddedKafka()" not in code
    ]


def created_topics(words: list[str]) -> list[str]:
    """The topics that one of our commands creates."""
    if words[:2] not in (["spark-eos", "broker"], ["spark-eos", "topics"]):
        return []
    pairs = pairwise(words)
    return [topic.partition(":")[0] for option, topic in pairs if option in _CREATING]


def page_topics(path: str) -> set[str]:
    """The topics that a page's commands create."""
    shown = [code for language, code in page(path).fences if language in {"sh", "text"}]
    lines = [words for code in shown for words in commands(code)]
    return {topic for words in lines for topic in created_topics(words)}


def _marks(path: str) -> list[pytest.MarkDecorator]:
    """Pages that start queries are slow tests; README.md, with the shortest query, is not."""
    starts = any(".start()" in code for _, code in page(path).fences)
    slow = path != "README.md" and (starts or path == "docs/operations.md")
    return [pytest.mark.slow] if slow else []


WITH_CODE: Final = [pytest.param(path, marks=_marks(path)) for path in PAGES if code_of(path)]

# What is made from the code -----------------------------------------------------------------------


def test_the_page_of_options_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "options.py"))["page"]()
    assert page("docs/options.md").text == made, "`make docs` brings it up to date"


@pytest.fixture
def summary(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of benchmarks/summary.py."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return runpy.run_path(str(ROOT / "benchmarks" / "summary.py"))


def test_figures_of_speed_are_those_that_were_measured(summary: dict[str, Any]) -> None:
    for file, text in summary["pages"]().items():
        assert file.read_text() == text, f"`make docs` brings {file.name} up to date"


@pytest.mark.parametrize(
    ("unit", "ours", "aim", "words"),
    [
        ("rows/s", 90, {"aim": 0.9}, "0.9 of equal: met"),
        ("rows/s", 89, {"aim": 0.9}, "0.9 of equal: **missed**"),
        ("ms", 90, {"aim": 0.9}, "0.9 of equal: met"),
        ("ms", 91, {"aim": 0.9}, "0.9 of equal: **missed**"),
        ("ms", 5_000, {"seconds": 5.0}, "5 s: met"),
        ("ms", 5_001, {"seconds": 5.0}, "5 s: **missed**"),
        ("ms", 91, {}, ""),
    ],
)
def test_more_rows_or_less_time_meet_an_aim(
    summary: dict[str, Any], unit: str, ours: float, aim: dict[str, float], words: str
) -> None:
    # The median round counts.
    figures = {summary["OURS"]: [1, ours, 9_000], summary["EQUAL"]: [100, 100, 100]}
    measured = summary["Measured"]("one", unit, figures)
    assert summary["Line"]("one", "one", **aim).words(measured) == words


def test_the_picture_of_the_demo_is_up_to_date() -> None:
    drawn = runpy.run_path(str(ROOT / "tools" / "picture.py"))["page"]()
    assert (DOCS / "assets" / "demo.svg").read_text() == drawn, "`make docs` draws it"
    # It is seen where no other host can be reached.
    assert set(re.findall(r"https?://[^\s\"')]+", drawn)) == {"http://www.w3.org/2000/svg"}
    for number in ("200,000", "331,206", "20,100"):
        assert number in drawn
    relay = json.loads((ROOT / "tools" / "demo.json").read_text())["relay"]
    numbers = [relay[name][1] for name in ("duplicates", "of them before the checkpoint's loss")]
    for path in ("README.md", "docs/index.md"):
        caption = page(path).text.partition("demo.svg)\n\n")[2].partition("\n\n")[0]
        assert all(f"{number:,}" in caption for number in numbers)


def test_each_row_of_the_runbook_has_a_cause_and_a_remedy() -> None:
    operations, section = page("docs/operations.md"), "Runbook by symptom"
    rows = [row for table in operations.tables if table.section == section for row in table.rows]
    assert len(rows) > 3
    for row in rows:
        assert all(row.values()), row
    # Errors have a page of their own.
    assert "(errors.md)" in operations.text.partition(f"\n## {section}\n")[2]


# What a page shows, in its order ------------------------------------------------------------------


@pytest.fixture
def page_kafka() -> Iterator[EmbeddedKafka]:
    """A broker for the page alone, since pages share topic names."""
    with EmbeddedKafka() as broker:
        yield broker


def produce(broker: EmbeddedKafka, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in numbers:
        producer.produce("orders", f"order {number}", str(number), headers=[("h", b"1")])
    assert producer.flush(60) == 0


def written(broker: EmbeddedKafka, topic: str) -> list[str]:
    return sorted((m.value() or b"").decode() for m in consume(broker.bootstrap_servers, topic))


def orders(count: int = _COUNT) -> list[str]:
    return sorted(f"order {number}" for number in range(count))


@dataclass
class Reader:
    """Follows a page, with the test's own addresses and directories."""

    broker: EmbeddedKafka
    directory: Path
    names: dict[str, Any]

    def own(self, text: str) -> str:
        servers = {"localhost:9092": self.broker.bootstrap_servers}
        return replaced(text, servers | {"checkpoints/": f"{self.directory}/"})

    def follow(self, language: str, code: str) -> None:
        code = self.own(code)
        if language == "python":
            exec(compile(code, "block", "exec"), self.names)  # noqa: S102
            return
        for words in commands(code):
            if words[:2] == ["spark-eos", "broker"]:  # it is there, but for its topics
                for name in created_topics(words):
                    self.broker.create_topic(name, partitions=4)
        run_commands(code)


def test_commands_that_are_only_shown_can_be_given() -> None:
    shown: list[str] = []
    for path in PAGES:
        parse_within(page(path).text)
        for language, code in page(path).fences:
            if language in {"", "bash", "text"}:
                shown += parse_lines(code)
    # Where a query is started: by its path, from the path, by cron.
    assert "spark-eos class-archive" in shown
    assert {line.partition(" ")[0] for line in shown} >= {
        *("/opt/orders/venv/bin/python", "spark-submit", "*/10"),
    }


@pytest.mark.parametrize("path", PAGES)
def test_each_fence_is_of_a_language_that_tests_know(path: str) -> None:
    languages = {language for language, _ in page(path).fences}
    assert languages <= {"", "python", "sh", "bash", "json", "text", "yaml"}
    assert {(path, language) for language in languages & {"bash", "yaml"}} <= TAKEN


@pytest.mark.parametrize("path", PAGES)
def test_lines_of_code_fit_on_a_page(path: str) -> None:
    """At 1280 pixels, as in site.css; tools/site_pictures.py checks the pages themselves."""
    lines = [line for _, code in page(path).fences for line in code.split("\n")]
    assert not [line for line in lines if len(line) > 90]


@pytest.fixture
def reader(
    page_kafka: EmbeddedKafka,
    spark_eos_session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Reader:
    end_queries(monkeypatch)
    return Reader(page_kafka, tmp_path, {"spark": spark_eos_session})


def _orders(reader: Reader) -> None:
    """What most pages assume."""
    reader.broker.create_topic("orders", partitions=4)
    produce(reader.broker, range(_COUNT))


def _own_sink(reader: Reader) -> None:
    """The query that docs/moving.md moves; it has written some of the orders."""
    _orders(reader)
    reader.broker.create_topic("orders-mailed", partitions=4)
    servers, old = reader.broker.bootstrap_servers, str(reader.directory / "old")
    run_sparks_sink(reader.names["spark"], servers, "orders", "orders-mailed", old)
    assert written(reader.broker, "orders-mailed") == orders()
    produce(reader.broker, range(_COUNT, _COUNT + 9))


def _query(reader: Reader) -> None:
    """The query of docs/operations.md, which is README's."""
    for language, code in code_of("README.md")[:3]:
        reader.follow(language, code)


_BEFORE = {"docs/moving.md": _own_sink, "docs/operations.md": _query}


def _before(path: str, reader: Reader) -> None:
    if path in _BEFORE:
        _BEFORE[path](reader)
    elif "orders" not in page_topics(path):
        _orders(reader)


_ENRICHED = {"orders-enriched": sorted(map(str.upper, orders(10_000)))}
_UPPER = sorted(map(str.upper, orders()))
# By page: what its queries have written in the end.
_WRITTEN: dict[str, dict[str, list[str]]] = {
    "README.md": _ENRICHED,
    "docs/dead-letters.md": {
        "orders-checked": sorted(map(str.upper, orders(10))),
        "orders-repaired": ["ORDER oops"],
        "orders-dlq": ["oops"],
        "orders-raw": sorted([*orders(10), "oops"]),
    },
    "docs/guide.md": {
        **dict.fromkeys(("orders-upper", "orders-invoices"), _UPPER),
        **dict.fromkeys(("orders-text", "orders-copy", "orders-archive"), orders()),
        "orders-status": ['{"status":"paid","ordered_at":"2026-11-20T09:30:00.000Z"}'],
        "orders-marked": [f"{order}!" for order in orders()],
        "orders-notices": sorted(f"shipped: {order}" for order in orders()),
        "orders-json": [],
        "orders-tagged": orders(),
    },
    "docs/index.md": _ENRICHED,
    "docs/moving.md": {"orders-mailed": orders(_COUNT + 9)},
    "docs/operations.md": _ENRICHED,
    "docs/verify.md": {"orders-positioned": orders()},
}


def test_the_output_of_queries_on_pages_is_checked() -> None:
    starting = {path for path in PAGES if any(".start()" in code for _, code in code_of(path))}
    assert starting | _BEFORE.keys() == _WRITTEN.keys()


def _sinks(path: str) -> Iterator[tuple[str, str]]:
    """Target and group of the sinks in a page's code."""
    for language, code in page(path).fences:
        # What starts a broker writes to that one.
        if language == "python" and "EmbeddedKafka()" not in code:
            for call in re.findall(r"ExactlyOnceSink\(\n(.*?)\n *\)", code, re.DOTALL):
                named = dict(re.findall(r'\b(\w+)="([^"]+)"', call))
                if {"topic", "group_id"} <= named.keys():
                    yield named["topic"], named["group_id"]


@pytest.mark.parametrize("path", PAGES)
def test_an_ordinary_user_can_create_the_directories(path: str) -> None:
    for language, code in page(path).fences:
        if language in {"python", "sh"}:
            assert not re.findall(r"""(?<=[ "'=])/(?!etc/|opt/|var/)[\w/]+""", code)


def test_each_target_is_that_of_one_query() -> None:
    """A page's steps run in order: `verify` reports the output of two queries as duplicates."""
    groups: dict[str, set[str]] = {}
    for path in PAGES:
        for topic, group in _sinks(path):
            groups.setdefault(topic, set()).add(group)
    assert groups["orders-enriched"] == {"order-processors"}
    assert not {topic: of_it for topic, of_it in groups.items() if len(of_it) > 1}


@pytest.mark.parametrize("path", [path for path in PAGES if "localhost:9092" in page(path).text])
def test_a_page_creates_what_its_queries_write(path: str) -> None:
    made = page_topics(path)
    if path == "docs/moving.md":
        made.add("orders-mailed")  # which the query that moves has written so far
    assert {topic for topic, _group in _sinks(path)} <= made


@pytest.mark.parametrize("path", WITH_CODE)
def test_what_a_page_shows_runs(
    path: str, reader: Reader, embedded_kafka: EmbeddedKafka, spark_eos_session: SparkSession
) -> None:
    _before(path, reader)
    for language, code in code_of(path):
        reader.follow(language, code)
    # Tests that a page shows get their fixtures.
    fixtures = {"embedded_kafka": embedded_kafka, "spark_eos_session": spark_eos_session}
    for name, found in reader.names.items():
        if name.startswith("test_"):
            found(**fixtures)
    for topic, values in _WRITTEN.get(path, {}).items():
        assert written(reader.broker, topic) == values, topic
    if path == "docs/guide.md":
        tagged = consume(reader.broker.bootstrap_servers, "orders-tagged")
        assert {str(m.headers()) for m in tagged} == {"[('channel', b'web')]"}
