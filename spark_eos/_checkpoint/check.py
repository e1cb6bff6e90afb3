"""Whether Spark can go on from a checkpoint, found out before the query starts."""

# Spark's own errors come once the query has started, name neither file nor cure, and differ from
# version to version.

import json
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Final

from spark_eos._checkpoint.marker import Files
from spark_eos._checkpoint.offset_log import LogEntry, OffsetLog, kafka_positions, numbers
from spark_eos._client.printable import listed
from spark_eos.errors import CheckpointError

# The newest formats that Spark 4.3 writes: of OffsetSeqLog, CommitLog, and Kafka's source.
_NEWEST: Final = {"offsets": 2, "commits": 3, "sources": 1}
_VERSION: Final = re.compile(r"v([0-9]{1,9})")

Reads = Callable[[set[str]], set[str]]
"""Tells which of some topics a source of the query reads."""


class CheckpointCheck:
    """Reads what Spark reads first; ``restart``: how a query goes on without its checkpoint."""

    def __init__(self, files: Files, restart: str) -> None:
        self._files = files
        self._restart = restart

    def check_logs(self, *, every_batch: bool) -> LogEntry | None:
        """Refuse logs that Spark can't read; return where the last batch ends.

        ``every_batch``: whether Spark needs the batch before the last, too; it does unless it
        tracks progress asynchronously.
        """
        log = OffsetLog(self._files, f"Put that file back from a copy, or {self._restart}")
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
                f"calls batch {finished[-1]} finished and has {what}: a write has failed, or files "
                "were removed",
                "offsets",
            )
        if finished:
            self._read("commits", finished[-1])
        if not logged:
            self._check_initial()
            return None
        last = logged[-1]
        if every_batch and last > 0:
            self._read("offsets", last - 1)
        lines = self._read("offsets", last)
        if last == 0 and not finished:
            self._check_initial()
        return LogEntry.of("\n".join(lines))

    def _read(self, part: str, batch_id: int) -> list[str]:
        """Return the lines of a log's entry, whose first two are Spark's."""
        name = f"{part}/{batch_id}"
        text = self._files.read(name)
        if text is None:
            raise self._error(f"has no {name}, which Spark continues from", name)
        lines = text.split("\n")
        self._check_version(name, lines[0].strip(), _NEWEST[part])
        # Spark lets a commit be without.
        told = lines[1].strip() if len(lines) > 1 else ""
        if not (_is_json(told) if told else part == "commits" or len(lines) > 1):
            raise self._damaged(name, told)
        if part == "offsets":
            entry = LogEntry.of(text)
            for line in entry.by_source().values():
                if line.startswith("{") and not _is_json(line):
                    raise self._damaged(name, line)
        return lines

    def _check_initial(self) -> None:
        """Read where the first batch begins, if Spark has noted it."""
        for source in self._files.names("sources"):
            name = f"sources/{source}/0"
            text = (self._files.read(name) or "").removeprefix("\0")
            first, _, rest = text.partition("\n")
            if kafka_positions(rest):
                self._check_version(name, first, _NEWEST["sources"])
            elif first.startswith("v") or not text:
                raise self._damaged(name, rest)

    def _check_version(self, name: str, line: str, newest: int) -> None:
        version = _VERSION.fullmatch(line)
        if version is None:
            raise self._damaged(name, line)
        if not 0 < int(version[1]) <= newest:
            raise CheckpointError(
                f"{self._place}: {name} has format {line!r}, which is not known up to Spark 4.3: a "
                f"newer version has written it. Start the query with that version, or "
                f"{self._restart}"
            )

    @property
    def _place(self) -> str:
        return f"checkpoint_location {self._files.location!r}"

    def _damaged(self, name: str, line: str) -> CheckpointError:
        read = f"its line {line[:100]!r} is not Spark's" if line else "it is empty or cut off"
        return self._error(f"has a damaged {name}: {read}", name)

    def _error(self, what: str, file: str) -> CheckpointError:
        return CheckpointError(
            f"{self._place} {what}. Put back {file} from a copy, or {self._restart}"
        )

    def check_number(self, entry: LogEntry, number: int) -> None:
        """Refuse another number of sources than before."""
        read = _topics_by_source(entry)
        if read is not None and len(read) != number:
            shown = "; ".join(listed(sorted(topics), 3) or "no topic" for topics in read)
            raise self._changed(
                f"has offsets of {len(read)} sources ({shown}), and the query has {number}"
            )

    def check_sources(self, entry: LogEntry, sources: Sequence[Reads | None]) -> None:
        """Refuse sources, as many as before, that were swapped; None is one that is not Kafka."""
        read = _topics_by_source(entry)
        if read is None:
            return
        for number, (topics, reads) in enumerate(zip(read, sources, strict=True), 1):
            if reads is not None and (others := topics - reads(topics)):
                raise self._changed(
                    f"has offsets of {listed(sorted(others), 10)} for source {number} of the "
                    f"query, which does not read {'that' if len(others) == 1 else 'these'} now"
                )

    def _changed(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._place} {what}: Spark tells sources apart by their order, so none may be "
            f"added, removed or swapped. Put them back as they were, or {self._restart}"
        )


def _topics_by_source(entry: LogEntry) -> list[set[str]] | None:
    """Return what each source has read; None if sources have names, by which Spark finds them."""
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
