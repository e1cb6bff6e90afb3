"""Decides which exceptions are a row's fault, and finds the rows at fault in a batch."""

# All code that reads or makes rows runs within `by_halves`. Outages must never cause dead letters,
# so this module lists the exceptions that may be an outage; any other exception of Python or its
# standard library is the row's fault. An exception of another package is judged only by its first
# base class. In a client of a server, that is the client's own base exception, even if ValueError
# follows it (redis.LockError). Parsers don't define exceptions that way.

import builtins
from collections.abc import Callable, Iterator
from sys import stdlib_module_names
from typing import Any, Final, NamedTuple

import pyarrow as pa

from spark_eos.errors import SparkEosError

_OUTAGES: Final = (OSError, MemoryError, ImportError, SparkEosError)
# These say that a value is at fault, wherever they appear among an exception's bases.
_VALUE_AT_FAULT: Final = (NotImplementedError, RecursionError, SyntaxError)
# Modules for networks, databases, processes and threads: any exception that they define may be an
# outage, and so may any EOFError that they raise.
_OUTAGE_MODULES: Final = (
    *("_queue", "_thread", "asyncio", "concurrent", "dbm", "ftplib", "http.client", "imaplib"),
    *("multiprocessing", "nntplib", "poplib", "queue", "smtplib", "socket", "sqlite3", "ssl"),
    *("subprocess", "telnetlib", "threading", "urllib.request", "xmlrpc"),
)
# For bad data, these modules raise a RuntimeError, or an OSError without an errno.
_UNPACKERS: Final = ("bz2", "gzip", "zipfile")
# Arrow raises these for values that it can't convert. Subclasses don't count: those of Arrow Flight
# come from a client.
_ARROWS: Final = (pa.ArrowException, pa.lib.ArrowCapacityError, pa.lib.ArrowSerializationError)
_GROUPS: Final = getattr(builtins, "BaseExceptionGroup", ())  # not in Python 3.10


def not_of_row(
    error: BaseException, row_errors: tuple[type[Exception], ...] = ()
) -> BaseException | None:
    """Return the first exception, among an error and its causes, that may not be a row's fault."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        cause = left.pop(0)
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        if not isinstance(cause, row_errors) and _may_be_outage(cause):
            return cause
        left.append(cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__))
        left.extend(cause.exceptions if isinstance(cause, _GROUPS) else ())
    return None


class Part(NamedTuple):
    """Consecutive rows and the function's result for them, or one row and its error."""

    rows: Any
    made: Any
    error: Exception | None


def by_halves(
    function: Callable[[Any], Any],
    rows: Any,
    row_errors: tuple[type[Exception], ...] = (),
    refuse: Callable[[Exception, BaseException, Any], None] = lambda _error, _other, _rows: None,
) -> Iterator[Part]:
    """Call a function with rows; if it raises, call it with each half, until bad rows are alone.

    An error that may not be a row's fault is raised. Before that, ``refuse`` is called with the
    error, with the exception among its causes that may be an outage, and with the rows.
    """
    left = [rows]
    while left:
        part = left.pop()
        made, error = _tried(function, part)
        if error is None:
            yield Part(part, made, None)
            continue
        other = not_of_row(error, row_errors)
        if other is not None:
            refuse(error, other, part)
        if other is not None or not len(part):
            raise error
        middle = len(part) // 2
        if middle:
            left += [part[middle:], part[:middle]]
        else:
            yield Part(part, None, error)


def _tried(function: Callable[[Any], Any], rows: Any) -> tuple[Any, Exception | None]:
    # Return the error, so that it does not become the context of errors that the halves raise.
    try:
        return function(rows), None
    except Exception as error:  # noqa: BLE001 - whatever reading or making a row raises
        return None, error


def _may_be_outage(error: BaseException) -> bool:
    kind = type(error)
    may_be_data = kind is RuntimeError or (isinstance(error, OSError) and error.errno is None)
    if may_be_data and _raised_in(error) in _UNPACKERS:
        return False
    if isinstance(error, _OUTAGES) or not isinstance(error, Exception):
        return True
    if any(_is_for_outages(base.__module__) for base in kind.__mro__):
        return True
    if isinstance(error, EOFError) and _is_for_outages(_raised_in(error)):
        return True
    if isinstance(error, _VALUE_AT_FAULT) or kind in _ARROWS:
        return False
    while kind.__module__.partition(".")[0] not in stdlib_module_names:
        kind = next(base for base in kind.__bases__ if issubclass(base, BaseException))
    return kind is Exception or issubclass(kind, RuntimeError)


def _is_for_outages(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in _OUTAGE_MODULES)


def _raised_in(error: BaseException) -> str:
    """Return the Python module that raised an error, or that called the native code that did."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
