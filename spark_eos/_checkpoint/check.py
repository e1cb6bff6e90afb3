"""Checks, before the query starts, that Spark can continue from a checkpoint."""

# Spark's own errors come only after the query has started, name neither the file nor a remedy, and
# differ from version to version.

import json
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Final

from spark_eos._checkpoint.marker import Files
from spark_eos._checkpoint.offset_log import LogEntry, OffsetLog, kafka_positions, numbers
from spark_eos._client.printable import listed
from spark_eos.errors import CheckpointError

# The newest formats of OffsetSeqLog, CommitLog and the Kafka source that Spark 4.3 writes.
_NEWEST: Final = {"offsets": 2, "commits": 3, "sources": 1}
_VERSION: Final = re.compile(r"v([0-9]{1,9})")

Reads = Callable[[set[str]], set[str]]
"""A function that returns which of the given topics a source of the query reads."""


class CheckpointCheck:
    """Checks the files that Spark reads first; ``restart`` says how to continue without them."""

    def __init__(self, files: Files, restart: str) -> None:
        self._files = files
        self._restart = restart

    def check_logs(self, *, every_batch: bool) -> LogEntry | None:
        """Refuse logs that Spark can't read; return where the last batch ends.

        ``every_batch``: whether Spark also needs the batch before the last one. Spark does, unless
        it tracks progress asynchronously.
        """
        log = OffsetLog(self._files, f"Restore that file from a copy, or {self._restart}")
        if not log.exists():
            return None
        try:
            uuid.UUID(query_id := log.query_id())
        except ValueError:
            raise self._damaged("metadata", query_id) from None
        logged, finished = (numbers(self._files, part) for part in ("offsets", "commits"))
        if finished and finished[-1] > max(logged, default=-1):
            what = f"offsets up to batch {logged[-1]} only" if logged else "no offsets of any batch"
            raise self._error(
                f"marks batch {finished[-1]} as finished but has {what}: a write failed, or files "
                "were removed",
                "offsets",
            )
        if finished:
            self._read("commits", finished[-1])
        if not logged:
            self._check_initial(None)
            return None
        last = logged[-1]
        if every_batch and last > 0:
            self._read("offsets", last - 1)
        lines = self._read("offsets", last)
        entry = LogEntry.of("\n".join(lines))
        if last == 0 and not finished:
            self._check_initial(entry)
        return entry

    def _read(self, part: str, batch_id: int) -> list[str]:
        """Return the lines of a log entry; the first two are its version and metadata."""
        name = f"{part}/{batch_id}"
        text = self._files.read(name)
        if text is None:
            raise self._error(f"has no {name}, from which Spark would continue", name)
        lines = text.split("\n")
        self._check_version(name, lines[0].strip(), _NEWEST[part])
        # A commit may lack the metadata.
        metadata = lines[1].strip() if len(lines) > 1 else ""
        if not (_is_json(metadata) if metadata else part == "commits" or len(lines) > 1):
            raise self._damaged(name, metadata)
        if part == "offsets":
            entry = LogEntry.of(text)
            for line in entry.by_source().values():
                if line.startswith("{") and not _is_json(line):
                    raise self._damaged(name, line)
        return lines

    def _check_initial(self, entry: LogEntry | None) -> None:
        """Check the files with the first batch's start offsets; ``entry`` is its log entry."""
        ends = {} if entry is None else entry.by_source()
        for source in self._files.names("sources"):
            name = f"sources/{source}/0"
            content = self._files.read(name)
            if entry is not None:
                of_kafka = bool(kafka_positions(ends.get(source, "")))
            else:
                # Spark creates the directory before it asks for the offsets, which may fail. Only
                # Kafka's file begins with a zero byte; other sources have formats of their own.
                of_kafka = content is not None and content[:1] in ("", "\0")
            if not of_kafka:
                continue
            first, _, rest = (content or "").removeprefix("\0").partition("\n")
            if not kafka_positions(rest):
                raise self._damaged(name, rest)
            self._check_version(name, first, _NEWEST["sources"])

    def _check_version(self, name: str, line: str, newest: int) -> None:
        version = _VERSION.fullmatch(line)
        if version is None:
            raise self._damaged(name, line)
        if not 0 < int(version[1]) <= newest:
            raise CheckpointError(
                f"{self._place}: {name} has format {line!r}, which Spark 4.3 and older do not "
                f"know: a newer version wrote it. Start the query with that version, or "
                f"{self._restart}"
            )

    @property
    def _place(self) -> str:
        return f"checkpoint_location {self._files.location!r}"

    def _damaged(self, name: str, line: str) -> CheckpointError:
        read = f"its line {line[:100]!r} is not Spark's" if line else "it is empty or truncated"
        return self._error(f"has a damaged {name}: {read}", name)

    def _error(self, what: str, file: str) -> CheckpointError:
        return CheckpointError(
            f"{self._place} {what}. Restore {file} from a copy, or {self._restart}"
        )

    def check_number(self, entry: LogEntry, number: int) -> None:
        """Refuse a query whose number of sources has changed."""
        read = _topics_by_source(entry)
        if read is not None and len(read) != number:
            shown = "; ".join(listed(sorted(topics), 3) or "no topic" for topics in read)
            raise self._changed(
                f"has offsets of {len(read)} sources ({shown}), and the query has {number}"
            )

    def check_sources(self, entry: LogEntry, sources: Sequence[Reads | None]) -> None:
        """Refuse sources that were swapped; None stands for a source that is not Kafka."""
        read = _topics_by_source(entry)
        if read is None:
            return
        for number, (topics, reads) in enumerate(zip(read, sources, strict=True), 1):
            if reads is not None and (others := topics - reads(topics)):
                raise self._changed(
                    f"has offsets of {listed(sorted(others), 10)} for source {number} of the "
                    f"query, which no longer reads {'it' if len(others) == 1 else 'them'}"
                )

    def _changed(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._place} {what}: Spark tells sources apart by their order, so none may be "
            f"added, removed or swapped. Restore the sources as they were, or {self._restart}"
        )


def _topics_by_source(entry: LogEntry) -> list[set[str]] | None:
    """Return the topics that each source has read; None if Spark finds the sources by name."""
    before = entry.by_source()
    if not all(name.isdecimal() for name in before):
        return None
    return [{topic for topic, _ in kafka_positions(before[n])} for n in sorted(before, key=int)]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
