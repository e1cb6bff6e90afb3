"""Which exceptions are a row's fault, which may be outages, and how rows at fault are found."""

import asyncio
import builtins
import bz2
import concurrent.futures
import configparser
import csv
import email
import email.policy
import ftplib
import gzip
import http.client
import imaplib
import json
import lzma
import marshal
import multiprocessing
import pickle
import plistlib
import queue
import socket
import sqlite3
import struct
import subprocess
import sys
import tarfile
import urllib.request
import xml.sax
import zipfile
import zlib
from collections.abc import Callable
from email.message import EmailMessage
from functools import partial
from io import BytesIO
from typing import Any
from xml.dom import minidom
from xml.etree import ElementTree

import confluent_kafka
import grpc
import httpx2
import kafka.errors
import pyarrow as pa
import pytest
import requests
import urllib3.exceptions

from spark_eos._spark.row_faults import by_halves, not_of_row
from spark_eos.errors import RegistryError, SchemaError


class PriceError(Exception):
    """A library's own error."""


class AnswerError(OSError, ValueError):
    """Like requests' JSONDecodeError: of both kinds."""


class ServerError(Exception):
    """The base of a client's errors, like redis.RedisError."""


class FlightError(pa.ArrowException):  # type: ignore[misc]
    """Like those of Arrow's clients of servers."""


class LockError(ServerError, ValueError):
    """Like redis.LockError, which is also raised if a lock could not be acquired."""


class FormatError(ValueError, PriceError):
    """Like msgpack.FormatError, tomlkit's ParseError, and Arrow's errors."""


class XmlSyntaxError(PriceError, SyntaxError):
    """Like lxml's error."""


def _closed_by_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = ftplib.FTP()  # noqa: S321 - sends nothing
        client.sock = socket.create_connection(server.getsockname())
        client.file = client.sock.makefile("r")
        server.accept()[0].close()
        with client.sock, client.file:
            client.getline()


def _other_end_closed() -> None:
    one, other = multiprocessing.Pipe()
    other.close()
    one.recv()


def _zip_with_password() -> bytes:
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a", "x" * 20)
    content = bytearray(made.getvalue())
    # The flag for it, of the file itself and of its entry in the directory.
    content[6] |= 1
    content[content.index(b"PK\1\2") + 8] |= 1
    return bytes(content)


def _unzipped(content: bytes) -> bytes:
    return zipfile.ZipFile(BytesIO(content)).read("a")


OUTAGES: list[Exception] = [
    ConnectionRefusedError(),
    MemoryError(),
    RuntimeError("can't start new thread"),
    Exception("no broker"),
    ModuleNotFoundError(),
    asyncio.TimeoutError(),
    asyncio.IncompleteReadError(b"", 1),
    concurrent.futures.TimeoutError(),
    concurrent.futures.BrokenExecutor(),
    http.client.IncompleteRead(b""),
    imaplib.IMAP4.abort(),
    queue.Empty(),
    sqlite3.OperationalError("database is locked"),
    subprocess.TimeoutExpired("x", 1),
    RegistryError("away"),
    SchemaError("not of this record"),
    confluent_kafka.KafkaException("no broker"),
    kafka.errors.KafkaTimeoutError(),
    grpc.RpcError(),
    requests.exceptions.ConnectionError(),
    requests.exceptions.JSONDecodeError("no", "x", 0),
    httpx2.ConnectError("no"),
    httpx2.RemoteProtocolError("no"),
    urllib3.exceptions.MaxRetryError(None, "x"),  # type: ignore[arg-type]
    urllib3.exceptions.ResponseNotChunked(),
    PriceError(),
    AnswerError(),
    LockError(),
    FlightError(),
]
FAULTS: list[Exception] = [
    ValueError("no number"),
    TypeError(),
    KeyError("customer"),
    AttributeError(),
    ZeroDivisionError(),
    AssertionError(),
    NameError(),
    StopIteration(),
    NotImplementedError(),
    FormatError(),
    XmlSyntaxError(),
    urllib3.exceptions.LocationParseError("x"),
]
# Of the standard library, and what they can't read.
PARSERS: list[tuple[Callable[..., object], Any]] = [
    (json.loads, "no"),
    (json.loads, '{"a":' * 20_000),
    (bytes.decode, b"\xff"),
    (ElementTree.fromstring, "<a"),
    (minidom.parseString, "<a"),
    (partial(xml.sax.parseString, handler=xml.sax.ContentHandler()), "<a"),
    (next, csv.reader(['"' + "x" * 200_000])),
    (partial(struct.unpack, "<q"), b""),
    (configparser.ConfigParser().read_string, "no"),
    (configparser.ConfigParser().items, "no"),
    (partial(email.message_from_string, policy=email.policy.strict), "a"),
    (partial(EmailMessage.set_content, EmailMessage()), object()),
    (plistlib.loads, b"no"),
    (pickle.loads, b"no"),
    (pickle.loads, b""),
    (marshal.loads, b""),
    (marshal.loads, b"no"),
    (zlib.decompress, b"no"),
    (gzip.decompress, b"no"),
    (gzip.decompress, gzip.compress(b"x")[:-1]),
    (bz2.decompress, b"no"),
    (lzma.decompress, b"no"),
    (zipfile.ZipFile, BytesIO(b"no")),
    (_unzipped, _zip_with_password()),
    (partial(tarfile.TarInfo.frombuf, encoding="utf-8", errors="strict"), b"no"),
    (urllib.request.Request, "no"),
    (partial(pa.scalar, type=pa.string()), b"\xff"),
    (partial(pa.array, type=pa.int32()), ["no"]),
    (pa.Array.to_pandas, pa.array([b"\xff"], pa.binary()).view(pa.string())),
]


def _error(function: Callable[..., object], *given: Any) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of any kind
        function(*given)
    return raised.value


@pytest.mark.parametrize("error", OUTAGES, ids=repr)
def test_what_may_be_an_outage(error: Exception) -> None:
    assert not_of_row(error) is error
    assert not_of_row(error, (type(error),)) is None


@pytest.mark.parametrize("closed", [_closed_by_server, _other_end_closed])
def test_an_end_of_a_connection_may_be_an_outage(closed: Callable[[], object]) -> None:
    error = _error(closed)
    assert type(error) is EOFError
    assert not_of_row(error) is error


@pytest.mark.parametrize("error", FAULTS, ids=repr)
def test_faults_of_rows(error: Exception) -> None:
    assert not_of_row(error) is None


@pytest.mark.parametrize(("parser", "data"), PARSERS, ids=range(len(PARSERS)))
def test_what_python_can_not_read_is_the_rows_fault(
    parser: Callable[..., object], data: Any
) -> None:
    assert not_of_row(_error(parser, data)) is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no groups")
def test_a_group_is_what_its_errors_are() -> None:
    group: Any = builtins.ExceptionGroup  # type: ignore[attr-defined]
    assert not_of_row(group("all", [ValueError(), KeyError()])) is None
    away = ConnectionResetError()
    assert not_of_row(group("one", [ValueError(), group("other", [away])])) is away


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit()], ids=repr)
def test_what_ends_a_process_is_no_rows_fault(error: BaseException) -> None:
    assert not_of_row(error) is error


def _raised(first: Exception, last: Exception, *cause: Exception | None) -> Exception:
    """The last error, raised while the first is being handled, optionally from another one."""
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


def test_rows_at_fault_are_found_among_others() -> None:
    def halved(rows: list[int]) -> list[float]:
        return [6 / row for row in rows]

    parts = list(by_halves(halved, [1, 2, 0, 3, 0]))
    assert [row for part in parts for row in part.rows] == [1, 2, 0, 3, 0]
    assert [made for part in parts for made in part.made or [None]] == [6, 3, None, 2, None]
    # The error of a whole batch is not the context of the errors that its parts raise.
    assert all(part.error.__context__ is None for part in parts if part.error is not None)


def test_an_outage_ends_the_search() -> None:
    refused = []

    def away(rows: list[int]) -> None:
        raise ConnectionError if len(rows) < 3 else ValueError

    with pytest.raises(ConnectionError):
        list(by_halves(away, [1, 2, 3], (), lambda *refusal: refused.append(refusal)))
    ((error, other, rows),) = refused
    assert error is other
    assert rows == [1]
    assert all(part.error for part in by_halves(away, [1, 2, 3], (ConnectionError,)))
    with pytest.raises(ZeroDivisionError):
        list(by_halves(lambda _rows: 1 / 0, []))
