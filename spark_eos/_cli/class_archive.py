"""``spark-eos class-archive``: makes your own Spark start faster."""

import click

from spark_eos._jars.spark_image import driver_options
from spark_eos.testing.class_training import train


@click.command("class-archive")
def class_archive() -> None:
    """Print JVM options that make a Spark driver start a few seconds faster.

    With these options, the driver loads Spark's classes from an archive (class data sharing), or
    starts without it if Java or pyspark has changed. The first call creates the archive in the
    cache directory (SPARK_EOS_CACHE), which takes a minute or two. Only the options are printed on
    stdout.

    \b
    Example: spark-submit --jars "$(spark-eos jars)" \\
                 --conf "spark.driver.defaultJavaOptions=$(spark-eos class-archive)" job.py
    """  # noqa: D301 - click needs the character itself
    click.echo(driver_options(train))
