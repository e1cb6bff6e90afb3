"""Formats log records as JSON for log shippers, using only the standard library's logging."""

import datetime
import json
import logging
from typing import Any, Final

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """Formats each log record as one line of JSON.

    The members are ``timestamp`` (RFC 3339, UTC, milliseconds), ``level``, ``logger``,
    ``message``, everything passed as ``extra`` (for a batch, the fields of its report), and
    ``exception`` with the traceback if there is one.

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
            **{name: value for name, value in vars(record).items() if name not in _STANDARD},
        }
        if record.exc_info:
            members["exception"] = self.formatException(record.exc_info)
        return json.dumps(members, default=str, ensure_ascii=False)
