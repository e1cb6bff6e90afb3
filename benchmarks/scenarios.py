"""What is measured: pure values."""

from dataclasses import dataclass
from typing import ClassVar

SPARE = 1_000
"""Records left in each partition, more than one poll takes: see `contestants.Arena.batches`."""


@dataclass(frozen=True)
class Records:
    """What is in the source topic.

    Attributes:
        size: Bytes of a value.
        partitions: Of source and target.
        key: Whether records have a key, of 8 bytes.
        header: Whether records have a header, of 16 bytes.
    """

    size: int
    partitions: int
    key: bool = True
    header: bool = False

    @property
    def name(self) -> str:
        """As it stands in tables."""
        size = f"{self.size // 1024} KiB" if self.size >= 1024 else f"{self.size} B"
        parts = [size, f"{self.partitions} partition{'s' if self.partitions > 1 else ''}"]
        if not self.key:
            parts.append("no key")
        if self.header:
            parts.append("header")
        return ", ".join(parts)

    @property
    def record_bytes(self) -> int:
        """Bytes of one record, roughly."""
        return self.size + (8 if self.key else 0) + (16 if self.header else 0)


@dataclass(frozen=True)
class Throughput:
    """One large batch.

    Attributes:
        records: What is in the source.
        rows: So many.
        loops: Whether the plain loops and Quix Streams take part.
    """

    records: Records
    rows: int
    loops: bool = False

    @property
    def name(self) -> str:
        """As it stands in tables."""
        return f"one batch, {self.records.name}"


@dataclass(frozen=True)
class Triggers:
    """Many batches of one size, of which the first do not count.

    Attributes:
        records: What is in the source.
        rows: Of one trigger.
        count: Triggers that count.
    """

    records: Records
    rows: int
    count: int

    WARM: ClassVar[int] = 2

    @property
    def batches(self) -> int:
        """Triggers to run."""
        return self.count + self.WARM

    @property
    def name(self) -> str:
        """As it stands in tables."""
        return f"{self.rows:,} rows, {self.records.name}"


@dataclass(frozen=True)
class Growth:
    """What becomes of the driver's own part as partitions and members grow.

    Attributes:
        rows: Of each partition in each batch.
        sizes: Numbers of partitions and members.
        batches: Triggers to run.
        name: As it stands in tables.
    """

    rows: int
    sizes: tuple[tuple[int, int], ...]
    batches: int
    name: str = "growth"


GROWTH = Growth(20, ((4, 1), (64, 1), (250, 1), (500, 1), (500, 64), (500, 200)), 8)


def throughputs(scale: float) -> list[Throughput]:
    """Large batches; ``scale`` 1 is about 200 MB each."""

    def rows(records: Records) -> int:
        most = 2_000_000 if records.size <= 100 else 200_000_000 // records.record_bytes
        return max(records.partitions * 10, int(most * scale))

    described = [
        (Records(100, 4), True),
        (Records(1024, 4), True),
        (Records(10_240, 4), False),
        (Records(100, 4, key=False), False),
        (Records(100, 4, header=True), False),
        (Records(100, 1), False),
        (Records(100, 64), False),
        (Records(100, 500), False),
    ]
    return [Throughput(records, rows(records), loops) for records, loops in described]


def triggers(scale: float) -> list[Triggers]:
    """Small, middling and many-partitioned batches."""

    def count(most: int) -> int:
        return max(3, int(most * scale))

    return [
        Triggers(Records(100, 4), 100, count(100)),
        Triggers(Records(100, 4), 10_000, count(100)),
        Triggers(Records(100, 4), 100_000, count(12)),
        Triggers(Records(100, 500), 50_000, count(8)),
    ]
