"""``spark-eos class-archive``."""

import click

from spark_eos._jars.java import JavaError
from spark_eos.testing.spark_image import ClassArchiveError, driver_options


@click.command("class-archive")
def class_archive() -> None:
    """Print JVM options that let a Spark driver start some seconds sooner.

    The driver then takes Spark's classes from an archive (class data sharing) for this Java and the
    installed pyspark; with others, Spark starts without it. The first call makes the archive in
    half a minute, in the cache directory (SPARK_EOS_CACHE). Only the options are printed on stdout.

    \b
    Example: spark-submit --jars "$(spark-eos jars)" \\
                 --conf "spark.driver.defaultJavaOptions=$(spark-eos class-archive)" job.py
    """  # noqa: D301 - click needs the character itself
    try:
        click.echo(driver_options(make=True))
    except (JavaError, ClassArchiveError) as error:
        raise click.ClickException(str(error)) from error
