"""Expected and visible rows, counted by their hashes in a temporary SQLite database.

As in `ledger`, no table has an index: one sort of all rows by hash compares them.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from spark_eos.verify.database import Database
from spark_eos.verify.places import SHIFT

TallyRow = tuple[bytes, bytes | None, int]
"""Hash of what identifies the row; hash of its value if compared by key, None if null; number."""

EXPECTED: Final = 0
VISIBLE: Final = 1

_SCHEMA: Final = """
CREATE TABLE rows (side INTEGER, id BLOB, value BLOB, number INTEGER);
CREATE TABLE keyless (number INTEGER);
"""

_COUNTS: Final = f"""
CREATE TABLE odd AS SELECT
    COUNT(*) FILTER (WHERE side = {EXPECTED}) AS expected,
    COUNT(*) FILTER (WHERE side = {VISIBLE}) AS visible,
    MIN(number) FILTER (WHERE side = {EXPECTED}) AS source,
    MIN(number) FILTER (WHERE side = {VISIBLE}) AS first,
    MAX(number) FILTER (WHERE side = {VISIBLE}) AS last
FROM rows GROUP BY id
HAVING expected <> visible
"""
_COUNT_VIEWS: Final = (
    """
CREATE VIEW missing AS
    SELECT expected - visible AS number, *
    FROM odd WHERE visible < expected ORDER BY source""",
    """
CREATE VIEW duplicates AS
    SELECT visible - expected AS number, *
    FROM odd WHERE expected AND visible > expected ORDER BY first""",
    """
CREATE VIEW unexpected AS
    SELECT visible AS number, * FROM odd WHERE NOT expected ORDER BY first""",
)

# Only within a partition is one record the last. MAX() also decides which row's value it is.
_LASTS: Final = f"""
CREATE TABLE lasts AS
    SELECT side, id, value, MAX(number) AS number
    FROM rows WHERE side = {EXPECTED} GROUP BY id, {{}}
    UNION ALL
    SELECT side, id, value, MAX(number)
    FROM rows WHERE side = {VISIBLE} GROUP BY id, number >> {SHIFT}
"""
_AMBIGUOUS: Final = f"""
CREATE VIEW ambiguous AS
    SELECT MIN(number) AS first, MAX(number) AS last
    FROM lasts WHERE side = {EXPECTED} GROUP BY id
    HAVING COUNT(DISTINCT COALESCE(value, x'')) > 1"""
# A null value deletes its key, so it equals a key that is not there: x'' is either.
_KEYS: Final = f"""
CREATE TABLE odd AS SELECT
    wanted,
    COUNT(DISTINCT value) FILTER (WHERE side = {VISIBLE}) AS variants,
    COALESCE(MAX(value = wanted) FILTER (WHERE side = {VISIBLE}), wanted = x'') AS agrees,
    COALESCE(MAX(value) FILTER (WHERE side = {VISIBLE}), x'') AS seen,
    MIN(number) FILTER (WHERE side = {EXPECTED}) AS source,
    MIN(number) FILTER (WHERE side = {VISIBLE}) AS first,
    MAX(number) FILTER (WHERE side = {VISIBLE}) AS last
FROM (
    SELECT side, id, number, COALESCE(value, x'') AS value,
        COALESCE(MAX(value) FILTER (WHERE side = {EXPECTED}) OVER (PARTITION BY id), x'') AS wanted
    FROM lasts
)
GROUP BY id
HAVING variants > 1 OR NOT agrees
"""
_KEY_VIEWS: Final = (
    """
CREATE VIEW missing AS
    SELECT 1 AS number, * FROM odd
    WHERE NOT agrees AND wanted <> x'' AND seen = x'' ORDER BY source""",
    """
CREATE VIEW unexpected AS
    SELECT 1 AS number, * FROM odd WHERE NOT agrees AND wanted = x'' ORDER BY first""",
    """
CREATE VIEW different AS
    SELECT 1 AS number, * FROM odd
    WHERE NOT agrees AND wanted <> x'' AND seen <> x'' ORDER BY first""",
    """
CREATE VIEW unsure AS
    SELECT 1 AS number, * FROM odd WHERE agrees""",
)


def digest(parts: Sequence[bytes | None]) -> bytes:
    """Returns 16 bytes that differ if any part does; null and empty differ too.

    Example:
        >>> digest([b"ab", b"c"]) == digest([b"a", b"bc"])
        False
    """
    # The lengths first, else the border between two parts could move.
    lengths = b",".join(b"-" if part is None else b"%d" % len(part) for part in parts)
    return blake2b(
        b"".join([lengths, b":", *(part for part in parts if part)]), digest_size=16
    ).digest()


class Tally(Database):
    """The database of a comparison."""

    def __init__(self) -> None:
        super().__init__(_SCHEMA)

    def add(self, side: int, rows: Iterable[TallyRow]) -> None:
        """Adds rows to a side, EXPECTED or VISIBLE."""
        self._database.executemany(f"INSERT INTO rows VALUES ({side:d}, ?, ?, ?)", rows)

    def add_keyless(self, numbers: Iterable[int]) -> None:
        """Adds visible rows that have no key to compare them by."""
        self._database.executemany(
            "INSERT INTO keyless VALUES (?)", ((number,) for number in numbers)
        )

    def compare(self) -> None:
        """Compares the sides as multisets.

        Creates the views ``missing``, ``duplicates`` and ``unexpected``, with the columns
        ``number``, ``expected``, ``visible``, ``source``, ``first`` and ``last``.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        self._run(_COUNTS, *_COUNT_VIEWS)

    def compare_keys(self, *, by_partition: bool) -> None:
        """Compares the last value of each key.

        Creates the views ``missing``, ``unexpected``, ``different`` and ``unsure``, with the
        columns ``number``, ``source``, ``first`` and ``last``; and ``ambiguous`` (``first``,
        ``last``), keys whose expected value is unknown. Unsure are keys in several partitions,
        whose last values differ while one of them is right: no order says which is the last.

        Args:
            by_partition: Whether the expected rows' numbers are positions, of which the last one
                in a partition counts; otherwise all expected rows of a key must be the same.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        self._run(
            _LASTS.format(f"number >> {SHIFT}" if by_partition else "value"),
            _AMBIGUOUS,
            _KEYS,
            *_KEY_VIEWS,
        )
