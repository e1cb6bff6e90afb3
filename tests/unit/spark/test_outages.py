"""Which errors of services' clients are outages, and which are a row's fault."""

import asyncio
import concurrent.futures
import sqlite3
from typing import Any

import confluent_kafka
import grpc
import pytest
from confluent_kafka.schema_registry.error import SchemaRegistryError

from spark_eos._spark.outages import is_outage


def of(module: str, *names: str) -> Exception:
    """An error of a class that a client library has, derived from its others; the last is its."""
    base: type[Exception] = Exception
    for name in names:
        base = type(name, (base,), {"__module__": module})
    return base("no")


class AnsweredError(Exception):
    """What a client raises for an answer."""

    def __init__(self, **told: Any) -> None:
        super().__init__("no")
        vars(self).update(told)


class Answer:
    """An answer of a service."""

    def __init__(self, **told: Any) -> None:
        vars(self).update(told)


class CallError(grpc.RpcError):  # type: ignore[misc]
    """What grpc raises, whose own class is private."""

    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__()
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code


def aws(code: str, status: int) -> AnsweredError:
    return AnsweredError(
        response={"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    )


OUTAGES = {
    "socket": ConnectionRefusedError(),
    "asyncio": asyncio.TimeoutError(),
    "futures": concurrent.futures.TimeoutError(),
    "memory": MemoryError(),
    "kafka": confluent_kafka.KafkaException("no broker"),
    "redis": of("redis.exceptions", "RedisError", "ConnectionError", "BusyLoadingError"),
    "redis replica": of("redis.exceptions", "ResponseError", "ReadOnlyError"),
    "psycopg": of("psycopg", "Error", "DatabaseError", "OperationalError"),
    "psycopg class": of("psycopg.errors", "Error", "OperationalError", "AdminShutdown"),
    "aborted": of("psycopg2.errors", "Error", "InternalError", "InFailedSqlTransaction"),
    "oracle": of("oracledb.exceptions", "Error", "InterfaceError"),
    "asyncpg": of("asyncpg.exceptions", "PostgresConnectionError", "ConnectionFailureError"),
    "mongo": of("pymongo.errors", "ConnectionFailure", "AutoReconnect"),
    "botocore": of("botocore.exceptions", "ConnectionError", "EndpointConnectionError"),
    "httpx": of("httpx", "HTTPError", "TransportError", "NetworkError", "ConnectError"),
    "urllib3": of("urllib3.exceptions", "HTTPError", "PoolError", "MaxRetryError"),
    "azure": of("azure.core.exceptions", "ServiceRequestError"),
    "google": of("google.api_core.exceptions", "ServerError", "ServiceUnavailable"),
    "elastic": of("elastic_transport", "TransportError", "ConnectionTimeout"),
    "cassandra": of("cassandra.cluster", "NoHostAvailable"),
    "grpc": CallError(grpc.StatusCode.UNAVAILABLE),
    "grpc credentials": CallError(grpc.StatusCode.UNAUTHENTICATED),
    "grpc without a code": grpc.RpcError(),
    "httpx status": AnsweredError(response=Answer(status_code=503)),
    "aiohttp status": AnsweredError(status=429),
    "google status": AnsweredError(code=502),
    "schema registry": SchemaRegistryError(500, 50001, "no"),
    "aws": aws("InternalError", 500),
    "aws, too many": aws("ProvisionedThroughputExceededException", 400),
}
FAULTS_OF_ROWS = {
    "value": ValueError("no number"),
    "key": KeyError("customer"),
    "assert": AssertionError(),
    "database": sqlite3.IntegrityError("not unique"),
    "psycopg": of("psycopg.errors", "Error", "DataError", "NumericValueOutOfRange"),
    "asyncpg": of("asyncpg.exceptions._base", "InterfaceError", "DataError"),
    "sqlite": sqlite3.InterfaceError("type 'dict' is not supported"),
    "redis": of("redis.exceptions", "RedisError", "DataError"),
    "mongo": of("pymongo.errors", "OperationFailure", "WriteError", "DuplicateKeyError"),
    "httpx": of("httpx", "HTTPError", "TransportError", "UnsupportedProtocol"),
    "own": of("pricing", "NetworkError"),
    "grpc": CallError(grpc.StatusCode.NOT_FOUND),
    "status": AnsweredError(response=Answer(status_code=404), status="500"),
    "code": AnsweredError(code=1062),
    "schema registry": SchemaRegistryError(404, 40403, "no"),
    "aws": aws("ConditionalCheckFailedException", 400),
    "aws, nothing": AnsweredError(response={}),
}


@pytest.mark.proves("row-becomes-dead-letter")
@pytest.mark.parametrize("error", OUTAGES.values(), ids=OUTAGES)
def test_outages(error: Exception) -> None:
    assert is_outage(error)


@pytest.mark.parametrize("error", FAULTS_OF_ROWS.values(), ids=FAULTS_OF_ROWS)
def test_faults_of_rows(error: Exception) -> None:
    assert not is_outage(error)


def raised(first: Exception, last: Exception, **how: Any) -> Exception:
    """The last error, raised while the first is handled."""
    try:
        try:
            raise first
        except type(first):
            if "cause" in how:
                raise last from how["cause"]
            raise last  # noqa: B904
    except type(last) as error:
        return error


def test_what_has_led_to_an_error_counts() -> None:
    away = ConnectionRefusedError
    assert is_outage(raised(away(), KeyError("a")))
    assert is_outage(raised(KeyError("a"), ValueError(), cause=away()))
    assert is_outage(raised(raised(away(), KeyError("a")), ValueError()))
    assert not is_outage(raised(away(), KeyError("a"), cause=None))
    assert not is_outage(raised(away(), ValueError(), cause=KeyError("a")))
    assert not is_outage(raised(KeyError("a"), ValueError()))


def test_an_error_that_leads_to_itself() -> None:
    one, other = ValueError("a"), KeyError("b")
    one.__cause__, other.__cause__ = other, one
    assert not is_outage(one)
    other.__context__ = ConnectionResetError()
    other.__suppress_context__ = False
    assert is_outage(one)


def test_members_of_a_group_count() -> None:
    # As ExceptionGroup has them, which Python 3.10 has not.
    group = AnsweredError(exceptions=(ValueError("a"), AnsweredError(exceptions=(TimeoutError(),))))
    assert is_outage(group)
    assert not is_outage(AnsweredError(exceptions=(ValueError("a"), "no error")))


def test_further_kinds_and_what_can_not_be_asked() -> None:
    class ShyError(Exception):
        @property
        def response(self) -> Any:
            raise RuntimeError("there is none")

    assert not is_outage(ShyError())
    assert is_outage(ShyError(), (ShyError,))
    assert is_outage(raised(ShyError(), ValueError()), (ShyError,))
