"""How many dead letters a batch may have, and how the limit is divided among its partitions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_eos._checks.dead_letter_limit import allowances
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.dead_letter_settings import DeadLetterSettings, DeadLetterTally
from spark_eos.errors import ConfigurationError
from spark_eos.options import DeadLetters, grouped, parse_limit


@pytest.mark.parametrize(
    ("most", "records", "limit"),
    [(0.1, 10, 100), (0.1, 5_000, 500), (0.0, 5_000, 100), (0, 5_000, 0), (7, 5, 7)],
)
def test_the_limit(most: float, records: int, limit: int) -> None:
    assert DeadLetterSettings(topic="dlq", limit=most).most(records) == limit


@pytest.mark.parametrize("most", [-1, 1.5, -0.1, True, "5", None])
def test_invalid_limits(most: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"dead_letters\.limit"):
        DeadLetters("dlq", limit=most)


def test_other_invalid_settings() -> None:
    with pytest.raises(ConfigurationError, match=r"dead_letters\.headers is 'x'.*'streams'"):
        grouped({"dead_letter_topic": None, "dead_letter_headers": "x"})
    with pytest.raises(ConfigurationError, match=r"dead_letters\.topic"):
        DeadLetters(" ")
    assert grouped({"dead_letter_topic": None, "max_dead_letters": 0.1}) == {}
    with pytest.raises(ConfigurationError, match=r"dead_letters\.limit needs dead_letters\.topic"):
        grouped({"max_dead_letters": 5})


@pytest.mark.parametrize(("text", "most"), [("5", 5), ("0.5", 0.5), ("1", 1), ("1.0", 1.0)])
def test_a_limit_as_text(text: str, most: float) -> None:
    found = parse_limit(text)
    assert (found, type(found)) == (most, type(most))


@given(
    st.integers(0, 10_000),
    st.dictionaries(
        st.builds(TopicPartition, st.just("a"), st.integers(0, 50)),
        st.integers(0, 1_000_000),
        min_size=1,
    ),
)
def test_the_parts_add_up_to_the_limit(limit: int, records: dict[TopicPartition, int]) -> None:
    parts = allowances(limit, records)
    assert parts.keys() == records.keys()
    assert sum(parts.values()) == limit
    total = sum(records.values()) or 1
    for partition, part in parts.items():
        assert part >= limit * records[partition] // total


def test_tallies_add_up() -> None:
    one, other = DeadLetterTally(), DeadLetterTally()
    one.add("error", "source a-0 offset 1", "x")
    other.add("error", "source a-1 offset 9", "x")
    other.add("too_large", "source a-1 offset 8", "y" * 1_000)
    one.include(other)
    assert one.total == 3
    assert one.reasons == {"error": 2, "too_large": 1}
    assert one.first == {"error": "source a-0 offset 1", "too_large": "source a-1 offset 8"}
    assert one.most_frequent(1) == "2 times: x"
    assert one.most_frequent().endswith("y...")
    assert all(len(text) <= 203 for text in one.errors)


def test_what_kafka_refuses_has_one_error_for_each_reason() -> None:
    tally = DeadLetterTally()
    for text in ["topic a does not exist (waited 20 s)"] + ["topic b does not exist"] * 5:
        tally.add("unknown_topic", "", text)
    assert tally.is_one_error
    tally.add("too_large", "", "the record is too large")
    assert not tally.is_one_error


@pytest.mark.parametrize(
    ("texts", "one"),
    [
        (["timed out"] * 6, True),
        (["timed out"] * 5, False),
        (["timed out"] * 6 + ["no route"], False),
        ([f"no customer {n}" for n in range(60)], True),
        ([f"no customer {n}f{n}-ab" for n in range(6)], True),
        ([f"invalid literal: b'no {'x' * n}'" for n in range(6)], True),
        ([f"can't parse '{'x' * n}'" for n in range(6)], True),
        ([f"pool <Pool at {hex(n)}> is empty" for n in range(9, 19)], True),
        ([f"customer {'x' * n} is unknown" for n in range(6)], False),
        ([f"'{'x' * n * 100}' is too long" for n in range(6)], True),
        ([f"no number: {'x' * n}{'y' * 9_000_000}" for n in range(6)], False),
        ([f"no number: '{n}{'y' * 9_000_000}'" for n in range(6)], True),
        (["the customers' order isn't there: '" + "x" * n for n in range(6)], True),
    ],
)
def test_one_error(texts: list[str], *, one: bool) -> None:
    tally, others = DeadLetterTally(), DeadLetterTally()
    for number, text in enumerate(texts):
        (tally if number % 2 else others).add("error", "", text)
    tally.include(others)
    assert tally.is_one_error == one
