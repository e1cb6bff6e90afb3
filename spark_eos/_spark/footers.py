"""Counts rows of Parquet files by their footers, in the driver's JVM, without a Spark job."""

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import SparkSession

from spark_eos._pyspark_internals import hadoop_configuration, java_packages

# More than these are counted sooner by tasks. Some are read at a time
# (parquet.metadata.read.parallelism, 5), and calls from Python to the JVM take their time too.
_MOST_FILES: Final = 16


def footer_rows(session: SparkSession, path: str) -> int | None:
    """Counts the rows of a directory's Parquet files with Hadoop's and Parquet's own readers."""
    java = java_packages(session)
    conf = hadoop_configuration(session)
    directory = java.org.apache.hadoop.fs.Path(path)
    file_system = directory.getFileSystem(conf)
    if not file_system.exists(directory):
        return 0
    # Few calls, each of which takes its time. Like Spark, this leaves out names that begin with
    # "_" or ".".
    if len(file_system.listStatus(directory)) > _MOST_FILES:
        return None
    footers = java.org.apache.parquet.hadoop.ParquetFileReader.readFooters(conf, directory)
    blocks = [footer.getParquetMetadata().getBlocks() for footer in _items(footers)]
    return sum(int(block.getRowCount()) for found in blocks for block in _items(found))


def _items(found: Any) -> Iterator[Any]:
    """A Java list's items by index: the end of its iterator costs py4j a hundred calls."""
    for index in range(found.size()):
        yield found.get(index)
