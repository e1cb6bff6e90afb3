"""Writes records by column: one part of every record in a batch at a time."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_WORD: Final = 8
# Maximum number of bytes that a column's offsets can address.
_MOST: Final = 2**31 - 64
_HIGH_BIT: Final = 0x80
# For each size of a variable-length number: the bits in its first eight bytes that show that
# another byte follows.
_FOLLOWED: Final = np.array(
    [0, *(sum(_HIGH_BIT << 8 * place for place in range(min(n, _WORD))) for n in range(10))],
    np.uint64,
)
# 56 bits are split into two groups of 28, then four of 14 and eight of 7. Each step has a mask of
# the bits that stay, a mask of the bits that move, and the distance that they move.
_HALVES: Final = [
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x00FFFFFFF0000000), np.uint64(4)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x0FFFC0000FFFC000), np.uint64(2)),
    (np.uint64(0x007F007F007F007F), np.uint64(0x3F803F803F803F80), np.uint64(1)),
]


class Sheet:
    """The records of several rows, in parts, and a mask of the rows that are left out."""

    def __init__(self, rows: np.ndarray, bad: np.ndarray) -> None:
        self.rows = rows
        self.bad = bad
        self._pieces: list[pa.Array] = []
        # Words, and how many of their first bytes are used.
        self._words: list[tuple[np.ndarray, np.ndarray]] = []

    def __len__(self) -> int:
        return len(self.rows)

    def refuse(self, bad: np.ndarray) -> None:
        """Mark the rows of a mask to be written one by one."""
        if bad.any():
            self.bad[self.rows[bad]] = True

    def refuse_some(self, places: np.ndarray) -> None:
        """Mark rows, given by their places, to be written one by one."""
        self.bad[self.rows[places]] = True

    def put(self, words: np.ndarray, sizes: Any) -> None:
        """Add the first ``sizes`` bytes (at most eight) of numbers, least significant first."""
        self._words.append((words.astype(np.uint64), sizes))

    def long(self, values: np.ndarray, present: np.ndarray) -> None:
        """Add variable-length integers, in zigzag encoding, where they are present."""
        self.varint(zigzag(values.astype(np.int64)), present)

    def varint(self, raw: np.ndarray, present: np.ndarray) -> None:
        """Add unsigned variable-length integers where they are present."""
        sizes = np.ones(len(raw), np.int64)
        for bits in range(7, 64, 7):
            longer = raw >= np.uint64(1 << bits)
            if not longer.any():
                break
            sizes += longer
        words = raw
        if len(sizes) and (most := sizes.max()) > 1:
            for low, high, moved in _HALVES:
                words = (words & low) | ((words & high) << moved)
            words = words | _FOLLOWED[sizes]
            if most > _WORD:
                self.put(words, np.minimum(sizes, _WORD) * present)
                rest = raw >> np.uint64(56)
                ninth = (rest & np.uint64(0x7F)) | np.where(sizes > 9, _HIGH_BIT, 0).astype("<u8")
                words = ninth | ((rest >> np.uint64(7)) << np.uint64(8))
                sizes = np.maximum(sizes - _WORD, 0)
        self.put(words, sizes * present)

    def add(self, texts: pa.Array) -> None:
        """Add bytes; a null adds none."""
        self._flush()
        texts = texts.cast(pa.binary())
        self._pieces.append(texts.fill_null(b"") if texts.null_count else texts)

    def joined(self) -> pa.Array:
        """Return the record of each row."""
        self._flush()
        if len(self._pieces) < 2:
            return self._pieces[0] if self._pieces else pa.array([b""] * len(self), pa.binary())
        return pc.binary_join_element_wise(*self._pieces, b"")

    def joined_by(self, offsets: np.ndarray) -> pa.Array:
        """Join the records of consecutive rows; each group of rows begins at one of ``offsets``."""
        array = self.joined()
        if not len(array):
            return pa.array([b""] * (len(offsets) - 1), pa.binary())
        _, own, content = array.buffers()
        bounds = np.frombuffer(own, np.int32)[array.offset :][: len(array) + 1]
        buffers = [None, pa.py_buffer(bounds[offsets]), content]
        return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)

    def _flush(self) -> None:
        if not self._words:
            return
        # Write whole words: each word overwrites the unused bytes of the previous word.
        width = _WORD * (len(self._words) + 1)
        if width * len(self) > _MOST:
            raise OverflowError
        data = np.zeros(width * len(self) + _WORD, np.uint8)
        places = np.ndarray((len(data) - _WORD + 1,), "<u8", data, 0, (1,))
        begins = np.arange(len(self), dtype=np.int64) * width
        at = begins
        for words, sizes in self._words:
            places[at] = words
            at = at + sizes
        self._words = []
        self._pieces.append(between(begins, at, data))


def zigzag(values: np.ndarray) -> np.ndarray:
    """Encode integers in zigzag encoding: the lowest bit is the sign."""
    raw: np.ndarray = ((values << 1) ^ (values >> 63)).view(np.uint64)
    return raw


def between(begins: np.ndarray, ends: np.ndarray, data: np.ndarray) -> pa.Array:
    """Return parts of a buffer, which must be in order, as a column."""
    # Make a column of the parts and the gaps between them, and take every other value.
    offsets = np.empty(2 * len(begins) + 1, np.int32)
    offsets[:-1:2], offsets[1::2] = begins, ends
    offsets[-1] = ends[-1] if len(ends) else 0
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    both = pa.Array.from_buffers(pa.binary(), 2 * len(begins), buffers)
    return both.take(pa.array(np.arange(0, 2 * len(begins), 2)))
