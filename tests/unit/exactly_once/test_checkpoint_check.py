"""Checkpoints that Spark can't continue from are refused at the start, with a remedy."""

from collections.abc import Mapping, Sequence

import pytest

from spark_eos._checkpoint.check import CheckpointCheck, Reads
from spark_eos._checkpoint.offset_log import LogEntry
from spark_eos.errors import CheckpointError
from support.checkpoint_texts import CheckpointTexts

_CURE = "start with another checkpoint"
_WHOLE = {
    "metadata": '{"id":"6ba7b810-9dad-11d1-80b4-00c04fd430c8"}',
    "sources/0/0": '\x00v1\n{"a":{"0":0}}',
    "sources/1/0": '\x00v1\n{"b":{"0":0}}',
    "offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"a":{"0":3}}\n{"b":{"0":1}}',
    "offsets/1": 'v1\n{"batchWatermarkMs":0}\n{"a":{"0":5}}\n{"b":{"0":1}}',
    "offsets/2": 'v2\n{"batchWatermarkMs":0}\n1:{"b":{"0":1}}\n0:{"a":{"0":8}}',
    "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
    "commits/1": "v2\n{}",
    "commits/2": "v1",
}


def _check(files: Mapping[str, str | None], *, every_batch: bool = True) -> LogEntry | None:
    whole = {**_WHOLE, **files}
    texts = CheckpointTexts({name: text for name, text in whole.items() if text is not None})
    return CheckpointCheck(texts, _CURE).check_logs(every_batch=every_batch)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"commits/2": None},
        dict.fromkeys(("commits/0", "commits/1", "commits/2")),
        {"commits/1": None},
        {"offsets/0": None},
        {"sources/0/0": "garbage", "sources/1/0": None},
        {"offsets/2": 'v1\n\n-\n{"logOffset":3}'},
        {"offsets/2": "v2\n{}\n1:-\n0:3"},
    ],
    ids=str,
)
def test_what_spark_continues_from(files: dict[str, str | None]) -> None:
    assert _check(files) is not None


def test_what_spark_has_not_begun() -> None:
    assert _check(dict.fromkeys(_WHOLE)) is None
    begun = {name: None for name in _WHOLE if name.startswith(("offsets", "commits"))}
    assert _check(begun) is None


class _EmptyDirectory(CheckpointTexts):
    def names(self, directory: str) -> list[str]:
        return ["0"] if directory == "sources" else super().names(directory)


def test_a_source_that_failed_before_it_had_offsets_may_try_again() -> None:
    texts = {"metadata": _WHOLE["metadata"]}
    assert CheckpointCheck(_EmptyDirectory(texts), _CURE).check_logs(every_batch=True) is None
    # Once the first batch is logged, its start must be known.
    logged = CheckpointCheck(_EmptyDirectory({**texts, "offsets/0": _WHOLE["offsets/0"]}), _CURE)
    with pytest.raises(CheckpointError, match="sources/0/0"):
        logged.check_logs(every_batch=True)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"metadata": None}, "has commits, offsets, sources but no metadata"),
        ({"metadata": ""}, "metadata of .* can't be read: ''"),
        ({"metadata": '{"id":"6ba7'}, "metadata of .* can't be read"),
        ({"metadata": '{"id":"nothing"}'}, "a damaged metadata: its line 'nothing'"),
        ({"offsets/2": ""}, "a damaged offsets/2: it is empty or truncated"),
        ({"offsets/2": "v1"}, "a damaged offsets/2: it is empty or truncated"),
        ({"offsets/2": "garb\x00ge"}, "a damaged offsets/2: its line 'garb"),
        ({"offsets/2": 'v1\n{"batchWat'}, "a damaged offsets/2: its line '{\"batchWat'"),
        ({"offsets/2": 'v1\n{}\n{"a":{"0":8'}, "a damaged offsets/2: its line"),
        ({"offsets/2": 'v9\n{}\n{"a":{"0":8}}'}, r"offsets/2 has format 'v9', .* newer version"),
        ({"offsets/1": None}, "has no offsets/1, from which Spark would continue"),
        ({"offsets/1": "garbage"}, "a damaged offsets/1"),
        (dict.fromkeys(("offsets/0", "offsets/1", "offsets/2")), "finished but has no offsets"),
        ({"offsets/2": None}, "marks batch 2 as finished but has offsets up to batch 1 only"),
        ({"commits/5": "v1\n{}"}, "marks batch 5 as finished"),
        ({"commits/2": ""}, "a damaged commits/2: it is empty"),
        ({"commits/2": 'v1\n{"next'}, "a damaged commits/2"),
        ({"commits/2": "v4\n{}"}, "commits/2 has format 'v4'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_checkpoints(files: dict[str, str | None], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as refused:
        _check(files)
    assert "/checkpoints/a" in refused.value.text
    assert refused.value.text.endswith(_CURE)


def test_asynchronous_logs_lack_batches() -> None:
    assert _check({"offsets/1": None}, every_batch=False) is not None


@pytest.mark.parametrize("text", ["", "\x00v1\n", '\x00v2\n{"a":{"0":0}}', "\x00v1\ngarbage"])
def test_where_the_first_batch_begins(text: str) -> None:
    only = {name: None for name in _WHOLE if name[-1] in "12" or name.startswith("commits")}
    assert _check(only) is not None
    with pytest.raises(CheckpointError, match="sources/0/0") as refused:
        _check({**only, "sources/0/0": text})
    assert refused.value.text.endswith(_CURE)


def _reads(*topics: str) -> Reads:
    return lambda among: among & {*topics}


def _check_sources(
    check: CheckpointCheck, entry: LogEntry, sources: Sequence[Reads | None]
) -> None:
    check.check_number(entry, len(sources))
    check.check_sources(entry, sources)


@pytest.mark.parametrize("last", ["offsets/1", "offsets/2"])
def test_sources_by_their_order(last: str) -> None:
    check = CheckpointCheck(CheckpointTexts({**_WHOLE, "offsets/2": _WHOLE[last]}), _CURE)
    entry = check.check_logs(every_batch=True)
    assert entry is not None
    for right in ([_reads("a"), _reads("b")], [_reads("a", "c"), _reads("b")], [None, _reads("b")]):
        _check_sources(check, entry, right)
    for wrong, words in (
        ([_reads("a")], r"offsets of 2 sources \(a; b\), and the query has 1"),
        ([_reads("a"), _reads("b"), None], "and the query has 3"),
        ([_reads("b"), _reads("a")], "offsets of a for source 1 of the query, which no longer"),
        ([_reads("a"), _reads("c")], "offsets of b for source 2"),
    ):
        with pytest.raises(CheckpointError, match=words) as refused:
            _check_sources(check, entry, wrong)
        assert refused.value.text.endswith(_CURE)


def test_sources_with_names_of_their_own_may_be_added() -> None:
    # Of Spark's source evolution.
    named = 'v2\n{}\norders:{"a":{"0":8}}'
    check = CheckpointCheck(CheckpointTexts({**_WHOLE, "offsets/2": named}), _CURE)
    entry = check.check_logs(every_batch=True)
    assert entry is not None
    _check_sources(check, entry, [])


_FILES = ('v1\n{"path":"file:///a","timestamp":1,"batchId":0}', '{"logOffset":0}')


@pytest.mark.parametrize(("initial", "end"), [_FILES, ("v1\n1700000000000", "5"), (None, "-")])
def test_files_of_other_sources_are_not_kafkas(initial: str | None, end: str) -> None:
    texts = {
        "metadata": _WHOLE["metadata"],
        "sources/0/0": _WHOLE["sources/0/0"],
        "sources/1/0": initial,
    }
    begun = {"offsets/0": f'v1\n{{"batchWatermarkMs":0}}\n{{"a":{{"0":3}}}}\n{end}'}
    for logged in ({}, begun):
        present = {name: text for name, text in {**texts, **logged}.items() if text is not None}
        CheckpointCheck(CheckpointTexts(present), _CURE).check_logs(every_batch=True)
