"""The command line: ``spark-eos``."""

import click

from spark_eos.cli.group import LazyGroup

# Each command's module is imported only when the command runs or helps.
COMMANDS = {
    "broker": "spark_eos.cli.broker:broker",
    "demo": "spark_eos.cli.demo:demo",
    "jars": "spark_eos.cli.jars:jars",
}


@click.group(cls=LazyGroup, commands_by_name=COMMANDS)
@click.version_option(package_name="spark-eos", message="%(prog)s %(version)s")
def main() -> None:
    r"""Exactly-once PySpark Structured Streaming from Kafka to Kafka.

    \b
    See a query survive being killed, beside Spark's own sink:
      spark-eos demo
    Read from Kafka with your own Spark:
      spark-submit --jars "$(spark-eos jars)" job.py
    A Kafka to try things on, until Ctrl-C:
      spark-eos broker --port 9092
    """
