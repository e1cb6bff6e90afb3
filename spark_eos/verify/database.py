"""A temporary SQLite database, which keeps memory use independent of the number of records."""

import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from spark_eos.errors import VerificationError

_STEPS: Final = 1_000_000
_PRAGMAS: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA temp_store = FILE;
PRAGMA cache_size = -32768;
"""
_Self = TypeVar("_Self", bound="Database")


class Database:
    """The database, in a directory that is removed when the context ends."""

    def __init__(self, schema: str, **functions: Callable[[Any], Any]) -> None:
        with _explained():
            self._directory = tempfile.TemporaryDirectory(prefix="spark-eos-verify-")
            file = Path(self._directory.name) / "records.sqlite"
            self._database = sqlite3.connect(file, isolation_level=None)
            # Signal handlers run only in Python code, so a long sort has to call Python now and
            # then.
            self._database.set_progress_handler(lambda: 0, _STEPS)
            for name, function in functions.items():
                self._database.create_function(name, 1, function)
            # The tables have no index: a single sort of all records answers every question.
            self._database.executescript(_PRAGMAS + schema)

    def __enter__(self: _Self) -> _Self:
        self.run(["BEGIN"])
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._directory.cleanup()

    def insert(self, what: str, rows: Iterable[tuple[Any, ...] | dict[str, Any]]) -> None:
        """Execute INSERT INTO with the values of each row."""
        with _explained():
            self._database.executemany(f"INSERT INTO {what}", rows)

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows that answer a query."""
        with _explained():
            return self._database.execute(query, values).fetchall()

    def number(self, query: str) -> int:
        """Return the single number that a query yields; 0 for null, such as the sum of no rows."""
        return int(self.ask(query)[0][0] or 0)

    def run(self, statements: Iterable[str]) -> None:
        """Execute statements."""
        with _explained():
            for statement in statements:
                self._database.execute(statement)


@contextmanager
def _explained() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C, and `VerificationError` if the database fails."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if str(error) == "interrupted":
            # sqlite3 swallows exceptions raised while the progress handler runs.
            raise KeyboardInterrupt from None
        raise VerificationError(
            f"the temporary database in {tempfile.tempdir or 'the directory for temporary files'} "
            f"can't be used: {error}. It holds about as many bytes as the keys of all records, and "
            "some 30 for each: set TMPDIR to a directory with enough free space"
        ) from error
