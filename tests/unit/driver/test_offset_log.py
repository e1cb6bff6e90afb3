"""Spark's offset log: where a batch starts and ends."""

import pytest

from spark_eos import errors
from spark_eos.batch.plan import BatchRange
from spark_eos.driver.offset_log import OffsetLog, parse_positions


class _Files(dict[str, str]):
    def read(self, path: str) -> str | None:
        return self.get(path)

    def names(self, path: str) -> list[str]:
        return sorted({name.split("/")[1] for name in self if name.startswith(f"{path}/")})

    def write(self, path: str, text: str) -> None:
        self[f"{path}/part-0.txt"] = text


def test_batch_0_starts_where_its_sources_say() -> None:
    log = OffsetLog(
        _Files(
            {
                "sources/0/0": '\x00v1\n{"a":{"0":3,"1":0}}',
                "sources/1/0": '\x00v1\n{"b":{"0":7}}',
                "offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"a":{"0":5,"1":0}}\n{"b":{"0":9}}',
            }
        )
    )
    assert log.batch_range(0) == BatchRange(
        0,
        {("a", 0): 3, ("a", 1): 0, ("b", 0): 7},
        {("a", 0): 5, ("a", 1): 0, ("b", 0): 9},
    )


def test_later_batches_start_where_the_one_before_ended() -> None:
    files = _Files(
        {
            "offsets/4": 'v1\n{}\n{"a":{"0":5}}\n-',
            "offsets/5": 'v2\n{}\n1:{"b":{"0":1}}\n0:{"a":{"0":8,"1":2}}',
        }
    )
    expected = BatchRange(5, {("a", 0): 5}, {("a", 0): 8, ("a", 1): 2, ("b", 0): 1})
    log = OffsetLog(files)
    assert log.batch_range(5) == expected
    # The same batch again, as after a failure; and the next needs no second look at this one.
    assert log.batch_range(5) == expected
    files["offsets/6"] = 'v1\n{}\n{"a":{"0":9,"1":2}}'
    del files["offsets/4"]
    del files["offsets/5"]
    assert log.batch_range(6).starts == expected.ends


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "offsets/3 is missing"),
        ({"offsets/3": "v1\n{}\n", "offsets/4": "v9\n{}\n"}, "unknown format 'v9'"),
        ({"offsets/3": "v1\n{}\n7"}, "not Kafka's"),
        ({"offsets/3": 'v1\n{}\n{"a":{"0":1}}\n{"a":{"0":1}}'}, "two sources .* read a-0"),
    ],
)
def test_offset_logs_that_can_not_be_used(files: dict[str, str], words: str) -> None:
    with pytest.raises(errors.CheckpointError, match=words):
        OffsetLog(_Files(files)).batch_range(4)


def test_no_checkpoint_at_all() -> None:
    with pytest.raises(errors.CheckpointError, match="no streaming checkpoint"):
        OffsetLog(_Files()).query_id()


def test_a_source_without_offsets_has_no_positions() -> None:
    assert parse_positions(["-", ""], "here") == {}
