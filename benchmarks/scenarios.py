"""The measured scenarios, as plain values."""

from dataclasses import dataclass, field

from schema_queries import KINDS, Kind
from variants import CONTESTANTS, VARIANTS

SPARE = 1_000
"""Records left in each partition, more than a poll returns; see `contestants.Arena.batches`."""


@dataclass(frozen=True)
class Records:
    """The records of the source topic.

    Attributes:
        size: Bytes of a value.
        partitions: Number of partitions of source and target.
        key: Whether records have a key, of 8 bytes.
        header: Whether records have a header, of 16 bytes.
        timestamp: Whether timestamps are copied too, as `jobs/relay.py` does.
        schema: The records' schema, if they have one.
    """

    size: int
    partitions: int
    key: bool = True
    header: bool = False
    timestamp: bool = False
    schema: Kind | None = None

    @property
    def name(self) -> str:
        """The name used in tables."""
        size = f"{self.size // 1024} KiB" if self.size >= 1024 else f"{self.size} B"
        parts = [size, f"{self.partitions} partition{'s' if self.partitions > 1 else ''}"]
        if not self.key:
            parts.append("no key")
        if self.header:
            parts.append("header")
        if self.timestamp:
            parts.append("timestamp")
        return ", ".join(parts)

    @property
    def record_bytes(self) -> int:
        """Approximate size of one record in bytes."""
        return self.size + (8 if self.key else 0) + (16 if self.header else 0)


@dataclass(frozen=True)
class Batches:
    """Batches of the same size in a query of one kind.

    Attributes:
        records: The source's records.
        rows: Number of rows in each batch.
        pair_only: Whether to measure only the fair pair, so that a whole run takes less than an
            hour.
        variant: The variant of the query, by its name in `variants.CONTESTANTS`.
    """

    records: Records
    rows: int
    pair_only: bool = field(default=False, kw_only=True)
    variant: str = field(default="", kw_only=True)

    @property
    def base(self) -> str:
        """The contestant that the variant's other contestants are compared with."""
        return next(iter(CONTESTANTS[self.variant])) if self.variant else ""

    @property
    def kind(self) -> str:
        """The name used in tables."""
        return ", ".join(filter(None, (self.variant, self.records.name)))


@dataclass(frozen=True)
class Throughput(Batches):
    """Large batches in a running query; the first batch starts it and does not count.

    Attributes:
        outsiders: Whether contestants without Spark are measured too.
        count: Number of batches that count.
    """

    outsiders: bool = False
    count: int = 2

    @property
    def batches(self) -> int:
        """Number of batches to run."""
        return self.count + 1

    @property
    def name(self) -> str:
        """The name used in tables."""
        return f"large batches, {self.kind}"


@dataclass(frozen=True)
class Triggers(Batches):
    """Many batches of the same size, the first of which don't count.

    Attributes:
        count: Number of triggers that count.
    """

    count: int

    @property
    def warm(self) -> int:
        """Number of triggers before the ones that count."""
        return max(2, self.count // 2)

    @property
    def batches(self) -> int:
        """Number of triggers to run."""
        return self.count + self.warm

    @property
    def name(self) -> str:
        """The name used in tables."""
        return f"{self.rows:,} rows, {self.kind}"


@dataclass(frozen=True)
class Growth:
    """A scenario that shows how the driver's own time grows with partitions.

    Attributes:
        rows: Number of rows per partition and batch.
        sizes: Numbers of partitions.
        batches: Number of triggers to run.
        warm: Number of triggers that don't count.
        name: Name in tables.
    """

    rows: int
    sizes: tuple[int, ...]
    batches: int
    warm: int
    name: str = "growth"


GROWTH = Growth(20, (4, 64, 500), batches=8, warm=2)


@dataclass(frozen=True)
class Latency:
    """Records that arrive one by one.

    Attributes:
        rate: Records per second.
        seconds: Duration.
    """

    rate: int
    seconds: float

    @property
    def name(self) -> str:
        """The name used in tables."""
        return f"latency at {self.rate:,} records/s"


def throughputs(scale: float) -> list[Throughput]:
    """Return scenarios with batches of about 100 MB at scale 1, or 50 MB for the last ones."""

    def rows(records: Records, megabytes: int) -> int:
        most = megabytes * min(10_000, 1_000_000 // records.record_bytes)
        return max(records.partitions * 10, int(most * scale))

    def against_all(records: Records, *, outsiders: bool) -> Throughput:
        return Throughput(records, rows(records, 100), outsiders)

    def pair(records: Records, count: int = 2) -> Throughput:
        return Throughput(records, rows(records, 50), pair_only=True, count=count)

    return [
        against_all(Records(100, 4), outsiders=True),
        against_all(Records(1024, 4), outsiders=True),
        against_all(Records(10_240, 4), outsiders=False),
        pair(Records(100, 4, key=False)),
        pair(Records(100, 4, header=True)),
        pair(Records(100, 4, header=True, timestamp=True)),
        pair(Records(100, 1)),
        pair(Records(100, 64)),
        pair(Records(100, 500), count=1),
        *(
            Throughput(Records(100, 4), rows(Records(100, 4), 50), variant=name)
            for name in VARIANTS
        ),
        *(
            # Larger batches of larger records, so that batches take about as long.
            Throughput(records, rows(records, max(50, schema.size // 5)), variant=schema.title)
            for schema in KINDS
            for records in (Records(schema.size, 4, schema=schema),)
        ),
    ]


def triggers(scale: float) -> list[Triggers]:
    """Return scenarios with small and medium batches, and with many partitions."""

    def count(most: int) -> int:
        return max(3, int(most * scale))

    return [
        Triggers(Records(100, 4), 100, count(50)),
        Triggers(Records(100, 4), 10_000, count(30)),
        Triggers(Records(100, 4), 100_000, count(8)),
        Triggers(Records(100, 500), 50_000, count(3), pair_only=True),
        *(Triggers(Records(100, 4), 100, count(20), variant=name) for name in VARIANTS),
    ]
