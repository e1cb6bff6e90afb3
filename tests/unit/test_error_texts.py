"""Errors show foreign texts in rows, names and answers without terminal control characters."""

import copy

import click
import pytest

from spark_eos._worker.dead_letter_settings import DeadLetterTally
from spark_eos.errors import KafkaResponseError, PrintableError, WriteError
from support.error_classes import own_errors

FOREIGN = "red \x1b[31m\x9b2J bell \a\b\x7f over\rwritten \u202eback\u2066 \x00"
ESCAPED = r"red \x1b[31m\x9b2J bell \x07\x08\x7f over\x0dwritten \u202eback\u2066 \x00".replace(
    r"\x0d", r"\r"
)


def test_no_error_of_ours_shows_control_characters() -> None:
    found = set(own_errors())
    assert len(found) > 30
    for error in found:
        # click's are made of the texts of ours.
        assert issubclass(error, PrintableError | click.ClickException), error
        assert error.__str__ is PrintableError.__str__ or issubclass(error, click.ClickException)


@pytest.mark.parametrize("error", [WriteError(FOREIGN), KafkaResponseError(FOREIGN, 3)])
def test_a_text_is_escaped_once(error: PrintableError) -> None:
    assert error.text == ESCAPED
    assert WriteError(f"again: {error.text}").text == f"again: {ESCAPED}"
    assert str(copy.copy(error)) == str(error)


def test_the_layout_of_our_own_texts_stays() -> None:
    text = "2 ACLs:\n\tkafka-acls.sh --topic 'größe 中 🙂'"
    assert WriteError(text).text == text


def test_an_error_without_a_text() -> None:
    assert str(WriteError()) == "[more: spark-eos explain EOS17]"
    assert WriteError("two", 2).text == "('two', 2)"


def test_a_rows_text_is_one_line() -> None:
    tally = DeadLetterTally()
    for position in ("source orders-0 offset 3", "source orders-0 offset 4"):
        tally.add("error", position, "bad\nError: all is well \x1b[2J")
    assert tally.most_frequent() == r"2 times: bad\nError: all is well \x1b[2J"
