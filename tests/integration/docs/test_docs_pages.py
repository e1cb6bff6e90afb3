"""README.md and docs/: their code runs, and their generated parts are up to date."""

import json
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from spark_eos._cli import main
from spark_eos.testing import EmbeddedKafka
from support.flow import consume
from support.jobs import ROOT, job
from support.pages import commands, end_queries
from support.queries import run_sparks_sink

DOCS = ROOT / "docs"
_BLOCK = re.compile(
    r"^(?:<!-- ([^\n]*) -->\n)?```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What the shell puts into another command.
_WITHIN = re.compile(r"\$\((spark-eos [^)]+)\)")
_CRON = re.compile(r"^(?:[*/0-9]+ ){5}")
_OWN_PROCESS = "in a process of its own"
_OTHER_TEST = re.compile(r"run by (tests/[\w/]+\.py)")
_CREATING = {"--topic", "--create"}
_COUNT = 40


@dataclass(frozen=True)
class Block:
    """A code block of a page, with its comment about how to run it.

    tests/integration/docs/test_walks.py runs blocks that need their own process.
    """

    language: str
    code: str
    note: str

    @property
    def runs_here(self) -> bool:
        return not (self.note == _OWN_PROCESS or _OTHER_TEST.match(self.note))


def blocks(page: str) -> list[Block]:
    """A page's code in reading order."""
    text = (ROOT / page).read_text()
    return [Block(language, code, note) for note, language, code in _BLOCK.findall(text)]


def created_topics(words: list[str]) -> list[str]:
    """The topics that one of our commands creates."""
    if words[:2] not in (["spark-eos", "broker"], ["spark-eos", "topics"]):
        return []
    pairs = pairwise(words)
    return [topic.partition(":")[0] for option, topic in pairs if option in _CREATING]


PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in DOCS.glob("*.md"))]


def _marks(page: str) -> list[pytest.MarkDecorator]:
    """A page's queries take long; README.md has the shortest of their kind."""
    starts = page == "docs/operations.md" or any(".start()" in one.code for one in blocks(page))
    slow = page != "README.md" and starts
    return [pytest.mark.slow] if slow else []


WITH_CODE = [
    pytest.param(page, marks=_marks(page))
    for page in PAGES
    if any(block.runs_here for block in blocks(page))
]

# What is made from the code -----------------------------------------------------------------------


def test_the_page_of_options_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "options.py"))["page"]()
    assert (DOCS / "options.md").read_text() == page, "`make docs` brings it up to date"


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
    for page in ("README.md", "docs/index.md"):
        caption = (ROOT / page).read_text().partition("demo.svg)\n\n")[2].partition("\n\n")[0]
        assert all(f"{number:,}" in caption for number in numbers)


def test_each_row_of_the_runbook_has_a_cause_and_a_remedy() -> None:
    runbook = (DOCS / "operations.md").read_text().split("\n## Runbook by symptom\n")[1]
    rows = [line for line in runbook.splitlines() if line.startswith("|")]
    assert len(rows) > 5
    # Errors have a page of their own.
    assert "(errors.md)" in runbook
    for row in rows:
        assert all(cell.strip() for cell in row.strip("|").split("|")), row


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
        text = text.replace("localhost:9092", self.broker.bootstrap_servers)
        return text.replace("checkpoints/", f"{self.directory}/")

    def follow(self, block: Block) -> None:
        if block.language == "python":
            exec(compile(self.own(block.code), "block", "exec"), self.names)  # noqa: S102
            return
        for words in commands(self.own(block.code)):
            if words[:2] == ["spark-eos", "broker"]:  # it is there, but for its topics
                for name in created_topics(words):
                    self.broker.create_topic(name, partitions=4)
            _COMMANDS[words[0]](words[1:])


def _parse_spark_eos(words: list[str]) -> None:
    command: click.Command = main
    context = main.make_context("spark-eos", list(words))
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, found.make_context(name, list(words), parent=context)


def _spark_eos(words: list[str]) -> None:
    if words[0] in {"broker", "registry"}:  # they run for ever, and have tests of their own
        _parse_spark_eos(words)
        return
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, f"spark-eos {' '.join(words)}: {result.output}"


def _spark_submit(words: list[str]) -> None:
    for index, word in enumerate(words):
        if word.startswith("jobs/"):
            job(Path(word).stem).main.make_context(word, words[index + 1 :])


def _make(words: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {word for word in words if "=" not in word} <= set(targets)


def _python(words: list[str]) -> None:
    if words[0] in {"my_query.py", "produce.py"}:  # a page's own, which are run where it shows them
        return
    subprocess.run([sys.executable, *words], check=True, timeout=240)


def _not_run(_words: list[str]) -> None:
    """Code that needs another machine, a network, or other tools."""


_KAFKAS = (
    "kafka-consumer-groups.sh",
    "kafka-reassign-partitions.sh",
    "kafka-topics.sh",
    "kafka-transactions.sh",
)
_COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "spark-eos": _spark_eos,
    "spark-submit": _spark_submit,
    "make": _make,
    "python": _python,
    **dict.fromkeys(("pip", "python3", ".", *_KAFKAS), _not_run),
}


def _parse_python(words: list[str]) -> None:
    assert Path(words[0]).name == "my_query.py", words


# The same without running any.
_PARSERS: dict[str, Callable[[list[str]], None]] = {
    **_COMMANDS,
    "spark-eos": _parse_spark_eos,
    "python": _parse_python,
}


def _parse_line(line: str) -> bool:
    """Parses the command at the start of a line; returns True if there is one."""
    command = _CRON.sub("", line)
    if Path(command.partition(" ")[0]).name not in _PARSERS:
        return False
    words = shlex.split(command, comments=True)
    ends = (number for number, word in enumerate(words) if word in {">", ">>", "|"})
    _PARSERS[Path(words[0]).name](words[1 : next(ends, None)])
    return True


def test_commands_that_are_only_shown_can_be_given() -> None:
    shown = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        for command in _WITHIN.findall(text):
            _parse_spark_eos(shlex.split(command)[1:])
        for language, code in _FENCE.findall(text):
            if language in {"", "bash", "text"}:
                lines = code.replace("\\\n", " ").splitlines()
                shown += [line for line in lines if _parse_line(line)]
    # Where a query is started: by its path, from the path, by cron.
    assert "spark-eos class-archive" in shown
    assert {line.partition(" ")[0] for line in shown} >= {
        *("/opt/orders/venv/bin/python", "spark-submit", "*/10"),
    }


def test_each_fence_is_of_a_language_that_tests_know() -> None:
    tests = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    for page in PAGES:
        languages = {language for language, _ in _FENCE.findall((ROOT / page).read_text())}
        assert languages <= {"", "python", "sh", "bash", "json", "text", "yaml"}, page
        for language in languages & {"bash", "yaml"}:
            taken = f'code_blocks("{Path(page).stem}", "{language}")'
            assert any(taken in test for test in tests), f"no test takes {taken}"


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_code_fit_on_a_page(page: str) -> None:
    """At 1280 pixels, as in site.css; tools/site_pictures.py checks the pages themselves."""
    lines = [
        line for _, code in _FENCE.findall((ROOT / page).read_text()) for line in code.split("\n")
    ]
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
    """Topics that most pages assume; pages create all others."""
    reader.broker.create_topic("orders", partitions=4)
    produce(reader.broker, range(_COUNT))


def _nothing(_reader: Reader) -> None:
    """The page creates its orders as well."""


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
    for block in blocks("README.md")[:3]:
        reader.follow(block)


_BEFORE = {
    "README.md": _nothing,
    "docs/dead-letters.md": _nothing,
    "docs/index.md": _nothing,
    "docs/moving.md": _own_sink,
    "docs/operations.md": _query,
}


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
    with_queries = {
        page
        for page in PAGES
        if any(block.runs_here and ".start()" in block.code for block in blocks(page))
    }
    assert with_queries <= _WRITTEN.keys()


def _sinks(page: str) -> Iterator[tuple[str, str]]:
    """Target and group of the sinks in a page's code."""
    for block in blocks(page):
        # What runs in a process of its own has a broker of its own.
        if block.language == "python" and block.note != _OWN_PROCESS:
            for call in re.findall(r"ExactlyOnceSink\(\n(.*?)\n *\)", block.code, re.DOTALL):
                named = dict(re.findall(r'\b(\w+)="([^"]+)"', call))
                if {"topic", "group_id"} <= named.keys():
                    yield named["topic"], named["group_id"]


@pytest.mark.parametrize("page", PAGES)
def test_directories_are_those_that_an_ordinary_user_can_create(page: str) -> None:
    for block in blocks(page):
        at_the_root = re.findall(r"""(?<=[ "'=])/(?!etc/|opt/|var/)[\w/]+""", block.code)
        assert not at_the_root


def test_each_target_is_that_of_one_query() -> None:
    """A page's steps run in order: `verify` reports the output of two queries as duplicates."""
    groups: dict[str, set[str]] = {}
    for page in PAGES:
        for topic, group in _sinks(page):
            groups.setdefault(topic, set()).add(group)
    assert groups["orders-enriched"] == {"order-processors"}
    assert not {topic: of_it for topic, of_it in groups.items() if len(of_it) > 1}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "localhost:9092" in (ROOT / page).read_text()]
)
def test_a_page_creates_what_its_queries_write(page: str) -> None:
    fences = _FENCE.findall((ROOT / page).read_text())
    lines = [words for name, code in fences if name in {"sh", "text"} for words in commands(code)]
    made = {topic for words in lines for topic in created_topics(words)}
    if page == "docs/moving.md":
        made.add("orders-mailed")  # which the query that moves has written so far
    assert {topic for topic, _group in _sinks(page)} <= made


@pytest.mark.parametrize("page", WITH_CODE)
def test_what_a_page_shows_runs(
    page: str, reader: Reader, embedded_kafka: EmbeddedKafka, spark_eos_session: SparkSession
) -> None:
    _BEFORE.get(page, _orders)(reader)
    for block in blocks(page):
        if block.runs_here:
            reader.follow(block)
    # Tests that a page shows get their fixtures.
    fixtures = {"embedded_kafka": embedded_kafka, "spark_eos_session": spark_eos_session}
    for name, found in reader.names.items():
        if name.startswith("test_"):
            found(**fixtures)
    for topic, values in _WRITTEN.get(page, {}).items():
        assert written(reader.broker, topic) == values, topic
    if page == "docs/guide.md":
        tagged = consume(reader.broker.bootstrap_servers, "orders-tagged")
        assert {str(m.headers()) for m in tagged} == {"[('channel', b'web')]"}


def test_other_tests_run_the_blocks_that_they_are_said_to_run() -> None:
    for page in PAGES:
        for language in ("python", "sh"):
            of_page = [block for block in blocks(page) if block.language == language]
            said = {found[1] for block in of_page if (found := _OTHER_TEST.match(block.note))}
            for file in said:
                # Else it is unknown which of them the test runs.
                assert all(_OTHER_TEST.match(block.note) for block in of_page), page
                # All of them: what is taken apart has as many names.
                call = re.escape(f'code_blocks("{Path(page).stem}", "{language}")')
                taken = rf"^(.+ =| +for \w+ in) {call}:?$"
                assert re.search(taken, (ROOT / file).read_text(), re.MULTILINE), (file, page)
