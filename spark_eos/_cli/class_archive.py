"""``spark-eos class-archive``: lets a Spark of your own start sooner."""

import click

from spark_eos._jars.spark_image import driver_options
from spark_eos.testing.class_training import train


@click.command("class-archive")
def class_archive() -> None:
    """Print JVM options that let a Spark driver start some seconds sooner.

    The driver then takes Spark's classes from an archive (class data sharing) for this Java and the
    installed pyspark; with others, Spark starts without it. The first call makes the archive in a
    minute or two, in the cache directory (SPARK_EOS_CACHE). Only the options are printed on stdout.

    \b
    Example: spark-submit --jars "$(spark-eos jars)" \\
                 --conf "spark.driver.defaultJavaOptions=$(spark-eos class-archive)" job.py
    """  # noqa: D301 - click needs the character itself
    click.echo(driver_options(train))
