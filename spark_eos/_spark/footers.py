"""Counts rows of Parquet files by their footers, in the driver's JVM, without a Spark job."""

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import SparkSession

# More than these are counted sooner by tasks. Some are read at a time
# (parquet.metadata.read.parallelism, 5), and calls from Python to the JVM take their time too.
_MOST_FILES: Final = 16


def footer_rows(session: SparkSession, path: str) -> int | None:
    """Counts the rows of a directory's Parquet files with Hadoop's and Parquet's own readers."""
    jvm: Any = session.sparkContext._jvm
    jvm_session: Any = session._jsparkSession
    conf = jvm_session.sessionState().newHadoopConf()
    directory = jvm.org.apache.hadoop.fs.Path(path)
    file_system = directory.getFileSystem(conf)
    if not file_system.exists(directory):
        return 0
    # Few calls, each of which takes its time. Like Spark, this leaves out names that begin with
    # "_" or ".".
    if len(file_system.listStatus(directory)) > _MOST_FILES:
        return None
    footers = jvm.org.apache.parquet.hadoop.ParquetFileReader.readFooters(conf, directory)
    blocks = [footer.getParquetMetadata().getBlocks() for footer in _items(footers)]
    return sum(int(block.getRowCount()) for found in blocks for block in _items(found))


def _items(found: Any) -> Iterator[Any]:
    """A Java list's items by index: the end of its iterator costs py4j a hundred calls."""
    for index in range(found.size()):
        yield found.get(index)
