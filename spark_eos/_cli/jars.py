"""``spark-eos jars``: prints the jars that your own Spark needs."""

import click

from spark_eos._jars.jar_sets import jar_set, spark_kafka_jars


@click.command()
@click.option(
    "--pyspark",
    metavar="VERSION",
    help="Version of pyspark, such as 4.2.0; by default the installed one.",
)
@click.option("--set", "name", metavar="NAME", help="Another set of jars, such as kafka-4.4.0.")
def jars(pyspark: str | None, name: str | None) -> None:
    """Print the jars of Spark's Kafka source, joined by commas.

    Missing jars are downloaded, verified and kept in the cache directory (SPARK_EOS_CACHE). Only
    the jars are printed on stdout. Their version may differ from pyspark's; docs/versions.md lists
    the versions that are tested together.

    \b
    Example: spark-submit --jars "$(spark-eos jars)" job.py
    """  # noqa: D301 - click needs the character itself
    if name is not None and pyspark is not None:
        raise click.UsageError("--pyspark and --set both choose a set of jars: give only one.")
    files = spark_kafka_jars(pyspark) if name is None else jar_set(name)
    click.echo(",".join(map(str, files)))
