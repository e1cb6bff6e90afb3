"""Log records for people and for log shippers; with the standard library's logging alone."""

import datetime
import json
import logging
from typing import Any, Final

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON.

    Its members are ``timestamp`` (RFC 3339, UTC), ``level``, ``logger``, ``message``, what the
    record was given as ``extra`` (of a batch: the fields of its report), and ``exception`` with the
    traceback where there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of JSON."""
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
