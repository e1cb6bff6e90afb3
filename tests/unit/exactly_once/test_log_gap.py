"""Asynchronously written logs from which Spark would not start."""

import pytest

from spark_eos._checkpoint.marker import Marker
from spark_eos._checkpoint.offset_log import complete_logs
from spark_eos.errors import CheckpointError
from support.checkpoint_texts import CheckpointTexts


def _files(offsets: list[int], commits: list[int], *, lags: bool = True) -> CheckpointTexts:
    marker = Marker("group", checkpoint_may_lag=lags)
    return CheckpointTexts(
        {
            "spark-eos/note/1-00000000/part-0.txt": marker.text(),
            **{f"offsets/{number}": f"ends of {number}" for number in offsets},
            **{f"commits/{number}": "" for number in commits},
        }
    )


@pytest.mark.parametrize("offsets", [[], [0], [0, 1], [0, 7, 8]])
def test_logs_that_spark_starts_with(offsets: list[int]) -> None:
    files = _files(offsets, offsets)
    before = dict(files)
    assert complete_logs(files, every_batch=True) is None
    assert files == before


def test_the_last_but_one_gets_the_offsets_of_the_one_before_it() -> None:
    files = _files([0, 3, 8, 9, 17], [0, 9])
    assert complete_logs(files, every_batch=False) is None
    assert complete_logs(files, every_batch=True) == 16
    assert files["offsets/16"] == "ends of 9"
    assert complete_logs(files, every_batch=True) is None


def test_logs_of_another_kind_are_left_alone() -> None:
    files = _files([0, 9, 17], [0, 18], lags=False)
    before = dict(files)
    assert complete_logs(files, every_batch=True) is None
    assert files == before


def test_what_can_not_be_completed() -> None:
    with pytest.raises(CheckpointError, match="batch 17, but of no earlier batch"):
        complete_logs(_files([17], []), every_batch=True)
