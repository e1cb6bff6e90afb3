"""``spark-eos class-archive``."""

import click

from spark_eos.jars import spark_classes
from spark_eos.jars.java import JavaError


@click.command("class-archive")
def class_archive() -> None:
    """Print JVM options that let a Spark driver start some seconds sooner.

    They take the classes of the installed pyspark from an archive (class data sharing). Missing,
    it is made first, which takes half a minute: it is kept in the cache directory (set
    SPARK_EOS_CACHE to choose another one), for this Java and these jars. With others, Spark starts
    as without it. Only the options are printed on stdout.

    \b
    Example: spark-submit --driver-java-options "$(spark-eos class-archive)" \\
                 --jars "$(spark-eos jars)" job.py
    """  # noqa: D301 - click needs the character itself
    try:
        archive = spark_classes.class_archive()
    except (JavaError, PermissionError) as error:
        raise click.ClickException(str(error)) from error
    if not archive.options:
        raise click.ClickException(
            f"the archive can't be made: {archive.failed.read_text(encoding='utf-8')}\n"
            f"To try again, remove {archive.failed}."
        )
    click.echo(spark_classes.quoted(archive.options))
