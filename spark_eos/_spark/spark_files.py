"""A checkpoint's files: through the JVM, by path on this host, or through Spark Connect."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos import _pyspark_internals as internals
from spark_eos._checkpoint.files import ArrowFiles, local_directory
from spark_eos._checkpoint.marker import Files
from spark_eos._client.locations import without_credentials
from spark_eos.errors import CheckpointError

# Hadoop's wildcards in the paths that Spark reads (org.apache.hadoop.fs.GlobPattern).
_GLOB: Final = re.compile(r"[{}\[\]*?\\]")
# Hadoop's names: CommonPathCapabilities.ABORTABLE_STREAM, and an option of S3A 3.4.2 or newer.
_THERE_WHEN_CLOSED: Final = "fs.capability.outputstream.abortable"
_UNLESS_THERE_IS_ONE: Final = "fs.option.create.conditional.overwrite"


def literal_path(path: str) -> str:
    """Escape a path's wildcards, so that Spark reads exactly this path."""
    return _GLOB.sub(r"\\\g<0>", path)


class HadoopFiles:
    """A checkpoint's files on any file system that Spark knows, read as Spark itself reads them."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = without_credentials(location)
        java = internals.java_packages(spark)
        self._path = java.org.apache.hadoop.fs.Path
        self._io = java.org.apache.commons.io.IOUtils
        self._base = self._path(location)
        self._fs = self._base.getFileSystem(internals.hadoop_configuration(spark))

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            why = error.java_exception
            text = without_credentials(str(why.getMessage()))
            raise CheckpointError(
                f"checkpoint_location {self.location!r}: {path} can't be read: "
                f"{why.getClass().getSimpleName()}: {text}. Let this user read it, or restore it "
                "from a copy"
            ) from None

    def read(self, path: str) -> str | None:
        full = self._path(self._base, path)
        with self._reading(path):
            if not self._fs.exists(full):
                return None
            stream = self._fs.open(full)
            try:
                return str(self._io.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def write(self, path: str, text: str) -> None:
        """See `Files`; the file appears complete or not at all."""
        self._create(f"{path}/part-0.txt", f"{text}\n")

    def copy_file(self, source: str, target: str) -> None:
        text = self.read(source)
        if text is None:
            raise CheckpointError(f"checkpoint_location {self.location!r}: {source} is gone")
        self._create(target, text)

    def _create(self, path: str, text: str) -> None:
        target = self._path(self._base, path)
        if self._fs.hasPathCapability(target, _THERE_WHEN_CLOSED):
            # This is an object store, whose renames are copies.
            try:
                self._create_at_once(target, text)
            except Exception:
                # If the response to a write is lost, the S3 client retries, and S3 refuses the
                # second write because the file now exists.
                if self.read(path) != text:
                    raise
            return
        # Write a hidden file first, so that nobody reads it while it is incomplete.
        aside = self._path(target.getParent(), f".{target.getName()}.aside")
        stream = self._fs.create(aside)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        if not self._fs.rename(aside, target):
            raise CheckpointError(
                f"checkpoint_location {self.location!r}: {path} can't be created there; "
                "check whether the file exists, and who may write to its directory"
            )

    def _create_at_once(self, target: Any, text: str) -> None:
        builder = self._fs.createFile(target).recursive()
        stream = builder.opt(_UNLESS_THERE_IS_ONE, "true").build()
        try:
            stream.write(text.encode())
        except BaseException:
            stream.abort()
            raise
        finally:
            stream.close()

    def delete(self, path: str) -> None:
        self._fs.delete(self._path(self._base, path), True)  # noqa: FBT003 - recursively

    def names(self, path: str) -> list[str]:
        full = self._path(self._base, path)
        with self._reading(path):
            if not self._fs.exists(full):
                return []
            names = [status.getPath().getName() for status in self._fs.listStatus(full)]
        return sorted(name for name in names if not name.startswith((".", "_")))


class SparkFiles:
    """Files on any file system that Spark knows; each read is a Spark job."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self.location = without_credentials(location)
        self._plain = location.rstrip("/")
        self._base = literal_path(self._plain)

    def read(self, path: str) -> str | None:
        rows = self._rows(path, "content")
        return bytes(rows[0].content).decode(errors="replace") if rows else None

    def names(self, path: str) -> list[str]:
        within = f"/{path}/"
        rows = self._rows(f"{path}/*", "path")
        return sorted({row.path.rpartition(within)[2].partition("/")[0] for row in rows})

    def write(self, path: str, text: str) -> None:
        self._write([(text,)], path)

    def _write(self, lines: list[tuple[str]], path: str) -> None:
        rows = self._spark.createDataFrame(lines, "line string").coalesce(1)
        writer = rows.write.mode("overwrite").option("compression", "none")
        writer.text(f"{self._plain}/{path}")

    def delete(self, path: str) -> None:
        """Empty a directory: Spark's API can't delete files, only overwrite them."""
        if self._rows(f"{path}/*", "path"):
            # Without lines the file is empty, and Spark does not list empty files.
            self._write([], path)

    def _rows(self, pattern: str, column: str) -> list[Row]:
        try:
            # Spark skips hidden files, and reads a file's content only if that column is selected.
            # Whatever the session's settings are, a file that can't be read is not a missing file.
            strict = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
            reader = self._spark.read.format("binaryFile").options(**strict)
            frame = reader.load(f"{self._base}/{pattern}")
            return frame.select(column).collect()
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return []
            raise


def own_checkpoint(spark: SparkSession, location: str) -> tuple[Files, StreamingQuery]:
    # If the location may be on this host, read its files without a Spark job.
    places: list[Files] = [] if local_directory(location) is None else [ArrowFiles(location)]
    others = []
    for files in [*places, SparkFiles(spark, location)]:
        text = files.read("metadata")
        if text is None:
            continue
        query_id = str(json.loads(text)["id"])
        # The same path on this host may hold another query's checkpoint.
        query = spark.streams.get(query_id)
        if query is not None:
            return files, query
        others.append(query_id)
    what = f"belongs to query {others[-1]}, which is not active" if others else "has no checkpoint"
    raise CheckpointError(
        f"checkpoint_location {without_credentials(location)!r} {what}: the sink and the query "
        "need the same checkpoint; start the query from sink.write(...), which sets it"
    )
