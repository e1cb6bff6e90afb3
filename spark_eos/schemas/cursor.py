"""Reads by column instead of by row: one value of every record in a batch at a time."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_eos.schemas.sheet import between

# Padding of the buffer: reads past a record's end are refused later, but must stay in the buffer.
_BEFORE: Final = 16
_AFTER: Final = 32
# Maximum number of bytes that a column's offsets can address.
_MOST: Final = 2**31 - 64
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
# Groups of 7 bits are joined in pairs into 14 bits, then 28 and 56. Each step has a mask of the
# bits that stay, a mask of the bits that move, and the distance that they move.
_PAIRS: Final = [
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
]


def bounds_and_bytes(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return where each text of a column begins, where the last one ends, and their bytes."""
    _, offsets, content = array.buffers()
    is_large = pa.types.is_large_binary(array.type)
    bounds = np.frombuffer(offsets, np.int64 if is_large else np.int32)[array.offset :]
    bounds = bounds[: len(array) + 1]
    return bounds, np.frombuffer(content or b"", np.uint8)[bounds[0] : bounds[-1]]


class Batch:
    """A batch's payloads in one buffer, and a mask of the rows that are left out."""

    def __init__(self, payloads: pa.Array) -> None:
        bounds, content = bounds_and_bytes(payloads)
        if len(content) > _MOST:
            raise OverflowError
        self.data = np.zeros(_BEFORE + len(content) + _AFTER, np.uint8)
        self.data[_BEFORE:-_AFTER] = content
        self.bounds = bounds.astype(np.int64) + (_BEFORE - int(bounds[0]))
        self.bad = np.zeros(len(payloads), bool)

    def words(self, kind: str) -> np.ndarray:
        """Return, for each byte of the buffer, the number of the given type that begins there."""
        size = np.dtype(kind).itemsize
        words: np.ndarray = np.ndarray((len(self.data) - size + 1,), kind, self.data, 0, (1,))
        return words

    def cursor(self) -> "Cursor":
        """Return a cursor at the beginning of each record."""
        return Cursor(self, np.arange(len(self.bad)), self.bounds[:-1].copy())

    def refuse(self, rows: np.ndarray) -> None:
        """Mark rows, given by number, to be read one by one."""
        self.bad[rows] = True


class Cursor:
    """A position in each of several records; reading moves it forward."""

    # After an error, the row is bad, and its values don't matter. But a position is never more than
    # one byte past the end of its record, where it shows that the record was too short.

    def __init__(
        self,
        batch: Batch,
        rows: np.ndarray,
        at: np.ndarray,
        ends: np.ndarray | None = None,  # ends of parts; None: the ends of the records
    ) -> None:
        self.batch = batch
        self.rows = rows
        self.at = at
        self.ends = batch.bounds[1:][rows] if ends is None else ends

    def __len__(self) -> int:
        return len(self.rows)

    def some(self, chosen: np.ndarray) -> "Cursor":
        """Return a cursor at the same positions in some of the records."""
        return Cursor(self.batch, self.rows[chosen], self.at[chosen], self.ends[chosen])

    def refuse(self, bad: np.ndarray) -> None:
        """Mark the records of a mask as bad."""
        if bad.any():
            self.batch.refuse(self.rows[bad])

    def finish(self) -> None:
        """Mark records as bad if the cursor is not at their end."""
        self.refuse(self.at != self.ends)

    def left(self) -> np.ndarray:
        """Return the number of bytes left in each record; -1 if it was too short."""
        left: np.ndarray = self.ends - self.at
        return left

    def move(self, sizes: Any) -> None:
        """Skip the given number of bytes in each record."""
        self.at = np.minimum(self.at + sizes, self.ends + 1)

    def follows(self, content: bytes) -> np.ndarray:
        """Return a mask of the records whose next bytes are ``content``, at most eight bytes."""
        kind = f"<u{next(size for size in (1, 2, 4, 8) if size >= len(content))}"
        word = int.from_bytes(content, "little")
        next_bytes = self.batch.words(kind)[self.at]
        if next_bytes.itemsize > len(content):
            next_bytes = next_bytes & next_bytes.dtype.type((1 << 8 * len(content)) - 1)
        found: np.ndarray = (next_bytes == word) & (self.at + len(content) <= self.ends)
        return found

    def byte(self) -> np.ndarray:
        """Read the next byte."""
        bytes_: np.ndarray = self.batch.data[self.at]
        self.move(1)
        return bytes_

    def number(self, kind: str) -> np.ndarray:
        """Read a number of fixed length, such as ``<f8``."""
        words: np.ndarray = self.batch.words(kind)[self.at]
        self.move(words.itemsize)
        return words

    def long(self) -> np.ndarray:
        """Read a signed variable-length integer in zigzag encoding, as in Avro."""
        return unzigzag(self.varint())

    def varint(self) -> np.ndarray:
        """Read an unsigned variable-length integer."""
        first = self.batch.data[self.at]
        if not len(first) or first.max() < 0x80:
            self.move(1)
            raw: np.ndarray = first.astype(np.uint64)
            return raw
        return self._varint()

    def _varint(self) -> np.ndarray:
        word: np.ndarray = self.batch.words("<u8")[self.at]
        # The first high bit that is not set marks the last byte of the number.
        stops = ~word & _HIGH_BITS
        last = stops & (~stops + np.uint64(1))
        raw: np.ndarray = word & (last | (last - np.uint64(1)))
        for low, high, bits in _PAIRS:
            raw = (raw & low) | ((raw & high) >> bits)
        sizes = _exponent(last) + 1 >> 3
        longer = np.flatnonzero(stops == 0)
        if len(longer):
            raw[longer], sizes[longer] = self._ends_of_long(longer, raw[longer])
        self.move(sizes)
        return raw

    def _ends_of_long(self, chosen: np.ndarray, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers of nine or ten bytes, eight of which were read, and their sizes."""
        ninth, tenth = (self.batch.data[self.at[chosen] + place] for place in (8, 9))
        more = ninth > 0x7F
        self.batch.refuse(self.rows[chosen[more & (tenth > 1)]])
        raw = raw | ((ninth & 0x7F).astype(np.uint64) << np.uint64(56))
        raw = raw | np.where(more, (tenth & 1).astype(np.uint64) << np.uint64(63), np.uint64(0))
        return raw, np.where(more, 10, 9)

    def text(self) -> pa.Array:
        """Read bytes that are preceded by their length."""
        sizes = self.long()
        self.refuse(sizes < 0)
        return self.slices(np.maximum(sizes, 0))

    def inside(self) -> "Cursor":
        """Skip the next bytes, which follow their length; return a cursor within these bytes."""
        sizes = np.minimum(self.varint(), np.uint64(_MOST)).astype(np.int64)
        begins, ends = self.span(sizes)
        return Cursor(self.batch, self.rows, begins, ends)

    def slices(self, sizes: Any) -> pa.Array:
        """Read the given number of bytes from each record."""
        begins, ends = self.span(sizes)
        # Records are in order in the buffer, and so are their parts.
        return between(begins, ends, self.batch.data)

    def rest(self) -> pa.Array:
        """Read the rest of each record."""
        return self.slices(self.left())

    def span(self, sizes: Any) -> tuple[np.ndarray, np.ndarray]:
        """Skip the given number of bytes; return where they begin and end."""
        # Limit the sizes before adding them, since the sum could overflow.
        begins = np.minimum(self.at, self.ends)
        sizes = np.minimum(sizes, self.ends - begins + 1)
        self.move(sizes)
        return begins, np.minimum(begins + sizes, self.ends)


def unzigzag(raw: np.ndarray) -> np.ndarray:
    """Decode zigzag integers, whose lowest bit is the sign."""
    numbers: np.ndarray = (raw >> np.uint64(1)) ^ (~(raw & np.uint64(1)) + np.uint64(1))
    return numbers.view(np.int64)


def _exponent(powers: np.ndarray) -> np.ndarray:
    """Return the exponents of powers of two."""
    return (powers.astype(np.float64).view(np.int64) >> 52) - 1023


def placed(
    parts: Sequence[pa.Array], places: Sequence[np.ndarray], rows: int, kind: pa.DataType
) -> pa.Array:
    """Return a column with the values of each part at its ``places``; other rows are null."""
    if len(parts) == 1 and np.array_equal(places[0], np.arange(rows)):
        return parts[0]
    whole = pa.concat_arrays([pa.nulls(1, kind), *parts])
    # Index 0 is the null.
    indices = np.zeros(rows, np.int64)
    if places:
        together = np.concatenate(places)
        indices[together] = np.arange(1, len(together) + 1)
    return whole.take(pa.array(indices))
