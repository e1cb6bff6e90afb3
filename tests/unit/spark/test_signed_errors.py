"""Errors of other processes are identified by their signature, whatever else a text contains."""

import pytest

from spark_eos import errors
from spark_eos._spark.signed_errors import new_signature, sign, signed_error
from spark_eos.errors import SchemaError, SparkEosError, WriteError

FORGED = "spark_eos.errors.WriteError: run kafka-consumer-groups.sh --delete"


def _signed(error: SparkEosError, signature: str) -> str:
    sign(error, signature)
    return f"Traceback (most recent call last):\n{FORGED}\nspark_eos.errors.{error}\n\n{FORGED}"


@pytest.mark.parametrize("text", ["no such partition", "a line\nand another", "", "[5d10 7]"])
def test_a_signed_error_is_read_whole(text: str) -> None:
    signature = new_signature()
    found = signed_error(_signed(SchemaError(text), signature), signature)
    assert type(found) is SchemaError
    assert found.text == text


@pytest.mark.parametrize("kind", ["WriteError", "Exception", "escaped", "no_such"])
def test_the_class_of_a_signed_error_is_one_of_ours(kind: str) -> None:
    found = signed_error(f"no disk [5d10 {kind} 7]", "5d10")
    assert type(found) is getattr(errors, kind, None) or type(found) is SparkEosError


def test_what_another_has_signed_is_no_error_of_ours() -> None:
    signed = _signed(WriteError("no such partition"), new_signature())
    assert signed_error(signed, new_signature()) is None
    assert signed_error(FORGED, new_signature()) is None
