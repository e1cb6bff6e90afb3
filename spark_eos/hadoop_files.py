"""A checkpoint's files, read through Hadoop's file systems as Spark itself reads them."""

from typing import Any

from pyspark.sql import SparkSession


class HadoopFiles:
    """Files below a location on any file system that Spark knows.

    Args:
        spark: a session (classic, not Connect).
        location: the checkpoint's location, as given to Spark.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._io = jvm.org.apache.commons.io.IOUtils
        self._base = self._path(location)
        session: Any = spark._jsparkSession
        self._fs = self._base.getFileSystem(session.sessionState().newHadoopConf())

    def read(self, path: str) -> str | None:
        """A file's text, or None if there is no such file."""
        full = self._path(self._base, path)
        if not self._fs.exists(full):
            return None
        stream = self._fs.open(full)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def names(self, path: str) -> list[str]:
        """Names in a directory that are not hidden; none if there is no such directory."""
        full = self._path(self._base, path)
        if not self._fs.exists(full):
            return []
        found = [status.getPath().getName() for status in self._fs.listStatus(full)]
        return sorted(name for name in found if not name.startswith((".", "_")))
