"""The command line: ``spark-eos``."""

import click

from spark_eos.cli.group import LazyGroup

# Each command's module is imported only when the command runs or helps.
COMMANDS = {
    "abort": "spark_eos.cli.abort:abort",
    "acls": "spark_eos.cli.acls:acls",
    "adopt": "spark_eos.cli.adopt:adopt",
    "broker": "spark_eos.cli.broker:broker",
    "demo": "spark_eos.cli.demo:demo",
    "jars": "spark_eos.cli.jars:jars",
    "status": "spark_eos.cli.status:status",
    "verify": "spark_eos.cli.verify:verify_command",
}


@click.group(cls=LazyGroup, commands_by_name=COMMANDS)
@click.version_option(package_name="spark-eos", message="%(prog)s %(version)s")
def main() -> None:
    """Exactly-once PySpark Structured Streaming from Kafka to Kafka.

    \b
    See a query survive being killed, beside Spark's own sink:
      spark-eos demo
    Read from Kafka with your own Spark:
      spark-submit --jars "$(spark-eos jars)" job.py
    How a query of yours stands:
      spark-eos status --bootstrap-servers localhost:9092 --group-id orders
    Whether its output is exactly-once:
      spark-eos verify --bootstrap-servers localhost:9092 --group-id orders \\
          --input orders --output orders-enriched --position-header source
    What an administrator has to allow it:
      spark-eos acls --bootstrap-servers localhost:9092 --principal User:orders \\
          --group-id orders --source orders --target orders-enriched
    A Kafka to try things on, until Ctrl-C:
      spark-eos broker --port 9092
    """  # noqa: D301 - click wants the character itself
