"""A staged query's checkpoint, as the harness sees it: the query's progress and its copies."""

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq

from spark_eos._kafka.offset_metadata import CommittedOffset, KnownPartitions
from spark_eos._kafka.topic_partition import TopicPartition


class StagedFiles:
    """Files below a checkpoint, which a query may be writing."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self._copies = checkpoint / "spark-eos" / "staged"
        self._processed = 0

    def last_batch(self) -> int:
        """The last batch that Spark has committed; -1 if there is none."""
        return max((int(p.name) for p in self._log("commits")), default=-1)

    def records_processed(self) -> int:
        """Source records of all batches that Spark has committed."""
        batch = self.last_batch()
        try:
            lines = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()
            # A version, the batch's own settings, and the end offsets of each source.
            ends = [json.loads(line) for line in lines[2:]]
        except (OSError, ValueError):
            # There is no batch yet, or its entry is still being written.
            return self._processed
        found = sum(sum(offsets.values()) for source in ends for offsets in source.values())
        self._processed = max(self._processed, found)
        return self._processed

    def copies(self) -> list[Path]:
        return sorted(self._copies.glob("*-*"))

    def missing_copies(self, known: Mapping[TopicPartition, CommittedOffset]) -> list[str]:
        """Names of copies that a staged commit names but that have no files."""
        staged = KnownPartitions.of(known).staged.values()
        names = [one.directory for one in staged if one.directory is not None]
        return [name for name in names if not self._files(name)]

    def file_with_rows(self, known: Mapping[TopicPartition, CommittedOffset]) -> Path | None:
        """A file with rows, from the copy that the staged commit names."""
        for staged in KnownPartitions.of(known).staged.values():
            for file in self._files(staged.directory or "-"):
                if pq.read_metadata(file).num_rows:
                    return file
        return None

    def _files(self, copy: str) -> list[Path]:
        try:
            return sorted((self._copies / copy).glob("part-*"))
        except FileNotFoundError:  # deleted while glob runs
            return []

    def _log(self, name: str) -> list[Path]:
        return [p for p in (self.checkpoint / name).glob("[0-9]*") if p.name.isdigit()]
