"""Which exceptions of a guarded function are a row's fault."""

import asyncio
import concurrent.futures
import csv
import json
import struct
import zlib
from xml.etree import ElementTree

import confluent_kafka
import grpc
import pyarrow as pa
import pytest

from spark_eos._spark.dead_letter_functions import not_of_row


class PriceError(Exception):
    """A library's own."""


class AnswerError(OSError, ValueError):
    """As requests' JSONDecodeError: of both kinds."""


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(),
        asyncio.TimeoutError(),
        concurrent.futures.TimeoutError(),
        MemoryError(),
        RuntimeError("no schema"),
        confluent_kafka.KafkaException("no broker"),
        grpc.RpcError(),
        PriceError(),
        AnswerError(),
    ],
    ids=repr,
)
def test_what_may_be_an_outage(error: Exception) -> None:
    assert not_of_row(error) is error
    assert not_of_row(error, (type(error),)) is None


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no number"),
        TypeError(),
        KeyError("customer"),
        AttributeError(),
        ZeroDivisionError(),
        AssertionError(),
        json.JSONDecodeError("no", "x", 0),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "no"),
        ElementTree.ParseError(),
        csv.Error(),
        struct.error(),
        zlib.error(),
        pa.ArrowInvalid(),
    ],
    ids=repr,
)
def test_faults_of_rows(error: Exception) -> None:
    assert not_of_row(error) is None


def _raised(first: Exception, last: Exception, *cause: Exception | None) -> Exception:
    """The last error, raised while the first is handled, and perhaps from another one."""
    try:
        try:
            raise first
        except type(first):
            if cause:
                raise last from cause[0]
            raise last  # noqa: B904
    except type(last) as error:
        return error


def test_what_has_led_to_an_error_counts() -> None:
    away, key, value = ConnectionRefusedError, KeyError, ValueError
    assert isinstance(not_of_row(_raised(away(), key("a"))), away)
    assert isinstance(not_of_row(_raised(key("a"), value(), away())), away)
    assert isinstance(not_of_row(_raised(_raised(away(), key("a")), value())), away)
    assert isinstance(not_of_row(_raised(PriceError(), value())), PriceError)
    assert not_of_row(_raised(PriceError(), value()), (PriceError,)) is None
    assert not_of_row(_raised(away(), key("a"), None)) is None
    assert not_of_row(_raised(away(), value(), key("a"))) is None


def test_an_error_that_leads_to_itself() -> None:
    one, other = ValueError("a"), KeyError("b")
    one.__cause__, other.__cause__ = other, one
    assert not_of_row(one) is None
