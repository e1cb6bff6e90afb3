"""Which partition holds a group's offsets."""

import pytest

from spark_eos._kafka.hanging_transactions import java_hash, offsets_partition


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("hello", 99_162_322), ("polygenelubricants", -(1 << 31)), ("\U0001f600", 1_772_899)],
)
def test_hashes_are_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_the_partition_of_a_groups_offsets_is_never_negative() -> None:
    assert offsets_partition("polygenelubricants", 50) == 0
    assert offsets_partition("hello", 50) == 22
