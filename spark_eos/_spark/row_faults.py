"""Decides which exceptions are a row's fault, and finds the rows at fault among others."""

# Whatever reads or makes rows runs within `by_halves`. Outages must never make dead letters: so
# what may be an outage is named here, and any other exception of Python's is the row's fault. Of
# another package's exceptions nothing is known but their first base: clients of servers derive
# theirs from one of their own first, and may add ValueError (redis.LockError); parsers do not.

import builtins
from collections.abc import Callable, Iterator
from sys import stdlib_module_names
from typing import Any, Final, NamedTuple

import pyarrow as pa

from spark_eos.errors import SparkEosError

_OUTAGES: Final = (OSError, MemoryError, ImportError, SparkEosError)
# They tell that a value is at fault, wherever they stand among the bases.
_TOLD: Final = (NotImplementedError, RecursionError, SyntaxError)
# For networks, databases, processes and threads: what they define, and the EOFError they raise.
_OUTAGE_MODULES: Final = (
    *("_queue", "_thread", "asyncio", "concurrent", "dbm", "ftplib", "http.client", "imaplib"),
    *("multiprocessing", "nntplib", "poplib", "queue", "smtplib", "socket", "sqlite3", "ssl"),
    *("subprocess", "telnetlib", "threading", "urllib.request", "xmlrpc"),
)
# What they say of data is an OSError with no number of one, or a RuntimeError.
_UNPACKERS: Final = ("bz2", "gzip", "zipfile")
# What Arrow says of values that it can't convert. Not what is derived: Flight is a client.
_ARROWS: Final = (pa.ArrowException, pa.lib.ArrowCapacityError, pa.lib.ArrowSerializationError)
_GROUPS: Final = getattr(builtins, "BaseExceptionGroup", ())  # not in Python 3.10


def not_of_row(
    error: BaseException, row_errors: tuple[type[Exception], ...] = ()
) -> BaseException | None:
    """Return the first, of an exception and what led to it, that may not be a row's fault."""
    known: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop(0)
        if each is None or id(each) in known:
            continue
        known.add(id(each))
        if not isinstance(each, row_errors) and _may_be_outage(each):
            return each
        left.append(each.__cause__ or (None if each.__suppress_context__ else each.__context__))
        left.extend(each.exceptions if isinstance(each, _GROUPS) else ())
    return None


class Part(NamedTuple):
    """Some consecutive rows, and what was made of them; or one row, and why it is at fault."""

    rows: Any
    made: Any
    error: Exception | None


def by_halves(
    function: Callable[[Any], Any],
    rows: Any,
    row_errors: tuple[type[Exception], ...] = (),
    refuse: Callable[[Exception, BaseException, Any], None] = lambda _error, _other, _rows: None,
) -> Iterator[Part]:
    """Call a function with rows, and if it raises with each half, until rows at fault are alone.

    What may not be a row's fault is raised; before, ``refuse`` is called with it, with that of its
    causes which tells so, and with the rows.
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
    # Outside of the handler, what halves raise is not led to by what the whole has raised.
    try:
        return function(rows), None
    except Exception as error:  # noqa: BLE001 - whatever reading or making a row raises
        return None, error


def _may_be_outage(error: BaseException) -> bool:
    kind = type(error)
    told = kind is RuntimeError or (isinstance(error, OSError) and error.errno is None)
    if told and _raised_in(error) in _UNPACKERS:
        return False
    if isinstance(error, _OUTAGES) or not isinstance(error, Exception):
        return True
    if any(_is_for_outages(each.__module__) for each in kind.__mro__):
        return True
    if isinstance(error, EOFError) and _is_for_outages(_raised_in(error)):
        return True
    if isinstance(error, _TOLD) or kind in _ARROWS:
        return False
    while kind.__module__.partition(".")[0] not in stdlib_module_names:
        kind = next(base for base in kind.__bases__ if issubclass(base, BaseException))
    return kind is Exception or issubclass(kind, RuntimeError)


def _is_for_outages(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in _OUTAGE_MODULES)


def _raised_in(error: BaseException) -> str:
    """Return the module that has raised an error, or has called what is not Python's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
