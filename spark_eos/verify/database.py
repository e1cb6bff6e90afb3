"""A temporary SQLite database, so that memory use does not grow with the number of records."""

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

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
    """The database, in a temporary directory that is removed when the context ends.

    Args:
        schema: Statements that create its tables and views.
    """

    def __init__(self, schema: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="spark-eos-verify-")
        file = Path(self._directory.name) / "ledger.sqlite"
        self._database = sqlite3.connect(file, isolation_level=None)
        # Signal handlers run only in Python code, so the long sort has to call Python now and then.
        self._database.set_progress_handler(lambda: 0, _STEPS)
        self._database.executescript(_PRAGMAS + schema)

    def __enter__(self: _Self) -> _Self:
        self._database.execute("BEGIN")
        return self

    def __exit__(self, *_: object) -> None:
        """Removes the database."""
        self._database.close()
        self._directory.cleanup()

    def total(self, what: str) -> int:
        """Returns the number of rows of a table or view."""
        return int(self._database.execute(f"SELECT COUNT(*) FROM {what}").fetchone()[0])

    def count(self, what: str) -> int:
        """Returns the sum of ``number`` over a view's rows."""
        query = f"SELECT COALESCE(SUM(number), 0) FROM {what}"
        return int(self._database.execute(query).fetchone()[0])

    def rows(self, columns: str, what: str, most: int) -> Iterator[tuple[int | bytes | None, ...]]:
        """Returns the first rows of a view, at most ``most``."""
        query = f"SELECT {columns} FROM {what} LIMIT ?"
        return iter(self._database.execute(query, (most,)).fetchall())

    def _run(self, *statements: str) -> None:
        """Executes statements that may take long.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        try:
            for statement in statements:
                self._database.execute(statement)
        except sqlite3.OperationalError as error:
            if str(error) == "interrupted":
                # sqlite3 swallows exceptions raised while the progress handler runs.
                raise KeyboardInterrupt from None
            raise
