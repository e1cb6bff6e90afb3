"""Formats log records as JSON for log shippers, using only the standard library's logging."""

import datetime
import json
import logging
import math
from collections.abc import Mapping
from typing import Any, Final

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
_OWN: Final = frozenset({"timestamp", "level", "logger", "message", "exception", "stack"})


class JsonFormatter(logging.Formatter):
    """Formats each log record as one line of JSON, in ASCII.

    The members are ``timestamp`` (RFC 3339, UTC, milliseconds), ``level``, ``logger``,
    ``message``, everything passed as ``extra`` (for a batch, the fields of its report),
    ``exception`` with the traceback if there is one, and ``stack`` if ``stack_info`` was passed.
    An extra that has one of these names gets an underscore, as in ``level_``; values that JSON
    doesn't know, such as NaN or tuples as keys, become text.

    Examples:
        >>> record = logging.LogRecord("shop", logging.INFO, "shop.py", 1, "%d sold", (3,), None)
        >>> record.created, record.sku = 0, "s-1"
        >>> print(JsonFormatter().format(record))  # doctest: +NORMALIZE_WHITESPACE
        {"timestamp": "1970-01-01T00:00:00.000+00:00", "level": "INFO", "logger": "shop",
         "message": "3 sold", "sku": "s-1"}

        Use the formatter for all logs of a driver:

            handler = logging.StreamHandler()
            handler.setFormatter(JsonFormatter())
            logging.basicConfig(handlers=[handler], level=logging.INFO)
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        members: dict[str, Any] = {
            "timestamp": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD:
                members[f"{name}_" if name in _OWN else name] = _safe(value)
        if record.exc_info:
            members["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            members["stack"] = self.formatStack(record.stack_info)
        # Escapes are valid in any encoding, even for file names that are not text.
        return json.dumps(members)


def _safe(value: object) -> object:
    """Return a value that JSON can express; a record is never lost because of an extra."""
    try:
        return _plain(value)
    except Exception:  # noqa: BLE001 - such as a cycle, or a __str__ that fails
        return f"<{type(value).__name__}>"


def _plain(value: object) -> object:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)
