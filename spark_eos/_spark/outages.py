"""Which errors are outages: what a service or the network is to blame for, and no row; pure.

Known by their names, so that no client library is imported. An outage that is taken for a row's
fault makes a dead letter of a good record; the reverse ends the query, with the error's text. So in
doubt it is an outage.
"""

import asyncio
import concurrent.futures
from collections.abc import Iterator
from typing import Any, Final

# OSError covers connections, time-outs, and what urllib and requests raise. Python 3.10 has
# time-outs of their own.
_KINDS: Final = (OSError, asyncio.TimeoutError, concurrent.futures.TimeoutError, MemoryError)

# By the package's first name; its subclasses count too.
_OUTAGES: Final = {
    # All packages: the first two are those of PEP 249, which all clients of SQL databases have.
    "": {"OperationalError", "InterfaceError", "ConnectionError", "TimeoutError"},
    "aiohttp": {"ClientConnectionError", "ClientPayloadError"},
    "asyncpg": {
        "InFailedSQLTransactionError",
        "InsufficientResourcesError",
        "InternalClientError",
        "OperatorInterventionError",
        "PostgresConnectionError",
        "PostgresSystemError",
        "TransactionRollbackError",
    },
    "azure": {
        "ClientAuthenticationError",
        "IncompleteReadError",
        "ServiceRequestError",
        "ServiceResponseError",
    },
    "botocore": {
        "CredentialRetrievalError",
        "HTTPClientError",
        "IncompleteReadError",
        "NoCredentialsError",
        "TokenRetrievalError",
    },
    "cassandra": {
        "AuthenticationFailed",
        "ConnectionBusy",
        "ConnectionException",
        "CoordinationFailure",
        "IsBootstrappingErrorMessage",
        "NoConnectionsAvailable",
        "NoHostAvailable",
        "OperationTimedOut",
        "OverloadedErrorMessage",
        "ServerError",
        "Timeout",
        "Unavailable",
    },
    "cimpl": {"KafkaException"},  # confluent_kafka's
    "elastic_transport": {"ConnectionTimeout", "SniffingError"},
    "google": {
        "Aborted",
        "GoogleAuthError",
        "RetryError",
        "ServerError",
        "TooManyRequests",
        "Unauthorized",
    },
    "http": {"HTTPException"},
    "kafka": {"RetriableError"},
    "mysql": {"ConnectionTimeoutError", "PoolError", "ReadTimeoutError", "WriteTimeoutError"},
    "pika": {"AMQPConnectionError", "ChannelClosed", "ChannelWrongStateError"},
    "psycopg": {"InFailedSqlTransaction"},
    "psycopg2": {"InFailedSqlTransaction"},
    "pymongo": {"ConnectionFailure", "ExecutionTimeout", "WTimeoutError"},
    "redis": {
        "ClusterError",
        "OutOfMemoryError",
        "ReadOnlyError",
        "RedisClusterException",
        "TryAgainError",
    },
    "sqlalchemy": {"DisconnectionError", "PendingRollbackError"},
    "urllib3": {"IncompleteRead", "PoolError", "ProtocolError", "ProxyError", "SSLError"},
} | {
    package: {"ConnectionNotAvailable", "NetworkError", "ProxyError", "TimeoutException"}
    | {"RemoteProtocolError", "TransportError"}
    for package in ("httpcore", "httpcore2", "httpx", "httpx2")
}
# Derived from one of the above, and yet the row's fault: what a function made of it can't be sent.
_OF_ROWS: Final = {
    "asyncpg": {"DataError"},
    "http": {"InvalidURL"},
    "httpx": {"LocalProtocolError", "UnsupportedProtocol"},
    "httpx2": {"LocalProtocolError", "UnsupportedProtocol"},
    "redis": {"ClusterCrossSlotError", "CrossSlotTransactionError"},
    "sqlite3": {"InterfaceError"},
}

# What a gRPC service answers because of what it was asked. All other codes are outages: so is
# UNAUTHENTICATED, which every row gets; PERMISSION_DENIED may be about what this row asked for.
_GRPC_CODES_OF_ROWS: Final = {
    "ALREADY_EXISTS",
    "FAILED_PRECONDITION",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
}
# 401, as UNAUTHENTICATED; time-outs; too many requests. All from 500 on too.
_STATUSES: Final = {401, 408, 429}
_STATUS_NAMES: Final = ("status_code", "status", "http_status_code", "code")
# What AWS answers with status 400.
_AWS_CODES: Final = {
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "ExpiredToken",
    "ExpiredTokenException",
    "LimitExceededException",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestTimeout",
    "RequestTimeoutException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "TransactionInProgressException",
}


def is_outage(error: BaseException, kinds: tuple[type[BaseException], ...] = ()) -> bool:
    """Whether an error, or any that has led to it, is an outage.

    What has led to it: its cause (``raise ... from``), or else what was being handled when it was
    raised (unless ``from None``), and the members of a group.

    Example:
        >>> is_outage(ConnectionRefusedError()), is_outage(ValueError("no number"))
        (True, False)
        >>> try:
        ...     try:
        ...         raise TimeoutError
        ...     except OSError:
        ...         raise KeyError("customer")
        ... except KeyError as error:
        ...     is_outage(error)
        True
        >>> class ServiceError(Exception):
        ...     status = 503
        >>> is_outage(ServiceError())
        True
    """
    return any(isinstance(each, (*_KINDS, *kinds)) or _is_one(each) for each in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and all that have led to it, each once."""
    known: set[int] = set()
    waiting: list[Any] = [error]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, BaseException) or id(one) in known:
            continue
        known.add(id(one))
        yield one
        waiting.append(one.__cause__)
        if not one.__suppress_context__:
            waiting.append(one.__context__)
        # An ExceptionGroup's, also that of the package exceptiongroup.
        members = _value(one, "exceptions")
        waiting.extend(members if isinstance(members, list | tuple) else ())


def _is_one(error: BaseException) -> bool:
    for kind in type(error).__mro__:
        package, name = kind.__module__.partition(".")[0], kind.__name__
        if name in _OF_ROWS.get(package, ()):
            return False
        if package == "grpc" and name == "RpcError":
            return _grpc_code(error) not in _GRPC_CODES_OF_ROWS
        if name in _OUTAGES.get(package, ()) or name in _OUTAGES[""]:
            return True
    return _answered_with_outage(error)


def _answered_with_outage(error: BaseException) -> bool:
    """Whether an answer of HTTP says so, of which clients tell the status in one way or other."""
    answer = _value(error, "response")
    if isinstance(answer, dict):  # botocore's
        named, told = answer.get("Error"), answer.get("ResponseMetadata")
        code = named.get("Code") if isinstance(named, dict) else None
        status = told.get("HTTPStatusCode") if isinstance(told, dict) else None
        return code in _AWS_CODES or _is_status(status)
    return any(_is_status(_value(each, name)) for each in (error, answer) for name in _STATUS_NAMES)


def _is_status(status: Any) -> bool:
    return isinstance(status, int) and (status in _STATUSES or 500 <= status <= 599)


def _grpc_code(error: BaseException) -> str | None:
    try:
        return str(error.code().name)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - one that was made without a code
        return None


def _value(of: object, name: str) -> Any:
    try:
        return getattr(of, name, None)
    except Exception:  # noqa: BLE001 - a property of whoever's class it is
        return None
