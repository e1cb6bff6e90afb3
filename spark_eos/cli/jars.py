"""``spark-eos jars``."""

import click

from spark_eos.ivy import DownloadError
from spark_eos.jars import JarError, jar_set, spark_kafka_jars
from spark_eos.java import JavaError


@click.command()
@click.option(
    "--pyspark",
    metavar="VERSION",
    help="For this version of pyspark, such as 4.2.0; by default the installed one.",
)
@click.option("--set", "name", metavar="NAME", help="Another set of jars, such as kafka-4.4.0.")
def jars(pyspark: str | None, name: str | None) -> None:
    """Print the jars of Spark's Kafka source, joined by commas.

    They are downloaded first if need be, verified, and kept in the cache directory (set
    SPARK_EOS_CACHE to choose another one). Only the jars go to stdout.

    \b
    Example: spark-submit --jars "$(spark-eos jars)" job.py
    """  # noqa: D301 - click wants the character itself
    if name is not None and pyspark is not None:
        raise click.UsageError("--pyspark chooses a set of jars and so does --set: give one.")
    try:
        files = spark_kafka_jars(pyspark) if name is None else jar_set(name)
    except (JarError, DownloadError, JavaError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(",".join(map(str, files)))
