"""Keeps hashes of expected and visible rows in SQL and answers questions about them."""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from spark_eos.verify.database import Database
from spark_eos.verify.findings import Difference
from spark_eos.verify.partitions import SHIFT

HashedRow = tuple[bytes, bytes | None, int]
"""Hash that identifies the row; its value's hash if compared by key (None if null); number."""

EXPECTED: Final = 0
VISIBLE: Final = 1

_SCHEMA: Final = """
CREATE TABLE rows (side INTEGER, id BLOB, value BLOB, number INTEGER);
CREATE TABLE keyless (position INTEGER);
"""

# Each question is a view with one row per case: `number` (of rows, or 1 for a key), `source` (an
# expected row), `first` and `last` (positions of outputs) and `detail`.
_COUNTS: Final = (
    f"""
CREATE TABLE odd AS SELECT
    COUNT(*) FILTER (WHERE side = {EXPECTED}) AS expected,
    COUNT(*) FILTER (WHERE side = {VISIBLE}) AS visible,
    MIN(number) FILTER (WHERE side = {EXPECTED}) AS source,
    MIN(number) FILTER (WHERE side = {VISIBLE}) AS first,
    MAX(number) FILTER (WHERE side = {VISIBLE}) AS last
FROM rows GROUP BY id
HAVING expected <> visible
""",
    """
CREATE VIEW counted AS
    SELECT *, printf('%d visible, %d expected', visible, expected) AS detail FROM odd""",
    f"""
CREATE VIEW {Difference.MISSING.value} AS
    SELECT expected - visible AS number, *
    FROM counted WHERE visible < expected ORDER BY source""",
    f"""
CREATE VIEW {Difference.DUPLICATE.value} AS
    SELECT visible - expected AS number, *
    FROM counted WHERE expected AND visible > expected ORDER BY first""",
    f"""
CREATE VIEW {Difference.UNEXPECTED.value} AS
    SELECT visible AS number, * FROM counted WHERE NOT expected ORDER BY first""",
)

# Only records of the same partition are ordered, so that one of them is the last. In SQLite, MAX()
# also selects the row that the value comes from.
_LASTS: Final = f"""
CREATE TABLE lasts AS
    SELECT side, id, value, MAX(number) AS number
    FROM rows WHERE side = {EXPECTED} GROUP BY id, {{}}
    UNION ALL
    SELECT side, id, value, MAX(number)
    FROM rows WHERE side = {VISIBLE} GROUP BY id, number >> {SHIFT}
"""
# A null value deletes its key, so it equals an absent key: x'' stands for both.
_KEYS: Final = (
    # Keys with several expected values.
    f"""
CREATE VIEW ambiguous AS
    SELECT MIN(number) AS first, MAX(number) AS last
    FROM lasts WHERE side = {EXPECTED} GROUP BY id
    HAVING COUNT(DISTINCT COALESCE(value, x'')) > 1""",
    f"""
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
""",
    # Visible records of a missing key are deletions.
    f"""
CREATE VIEW {Difference.MISSING.value} AS
    SELECT 1 AS number, *, CASE WHEN first IS NULL THEN '' ELSE 'deleted' END AS detail FROM odd
    WHERE NOT agrees AND wanted <> x'' AND seen = x'' ORDER BY source""",
    f"""
CREATE VIEW {Difference.UNEXPECTED.value} AS
    SELECT 1 AS number, *, '' AS detail FROM odd
    WHERE NOT agrees AND wanted = x'' ORDER BY first""",
    f"""
CREATE VIEW {Difference.VALUE.value} AS
    SELECT 1 AS number, *, '' AS detail FROM odd
    WHERE NOT agrees AND wanted <> x'' AND seen <> x'' ORDER BY first""",
    # Keys whose last values differ between partitions, where one value is as expected: it is
    # unknown which value is the last.
    """
CREATE VIEW unsure AS
    SELECT 1 AS number, * FROM odd WHERE agrees""",
)


def digest(parts: Sequence[bytes | None]) -> bytes:
    """Return 16 bytes that differ if any part differs; null differs from empty."""
    # Lengths come first; otherwise, bytes could move from one part to the next unnoticed.
    lengths = b",".join(b"-" if part is None else b"%d" % len(part) for part in parts)
    return blake2b(
        b"".join([lengths, b":", *(part for part in parts if part)]), digest_size=16
    ).digest()


class RowCounts(Database):
    """The rows of a comparison."""

    def __init__(self) -> None:
        super().__init__(_SCHEMA)

    def add(self, side: int, rows: Iterable[HashedRow]) -> None:
        """Add rows to a side, EXPECTED or VISIBLE."""
        self.insert("rows VALUES (?, ?, ?, ?)", ((side, *row) for row in rows))

    def add_keyless(self, numbers: Iterable[int]) -> None:
        """Add visible rows that have no key to compare them by."""
        self.insert("keyless VALUES (?)", ((number,) for number in numbers))

    def compare(self) -> None:
        """Compare the sides as multisets; raise KeyboardInterrupt on Ctrl-C."""
        self.run(_COUNTS)

    def compare_keys(self, *, by_partition: bool) -> None:
        """Compare the last value of each key, which has the highest number."""
        # Numbers give an order only if they are positions within a partition. Rows of files have
        # no order, so all expected values of a key must be equal.
        self.run([_LASTS.format(f"number >> {SHIFT}" if by_partition else "value"), *_KEYS])
