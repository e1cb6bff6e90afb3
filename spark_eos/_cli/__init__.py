"""The command line: ``spark-eos``."""

import importlib
from typing import Any

import click

from spark_eos.errors import PrintableError

# Each command's module is imported only when the command runs or prints its help.
COMMANDS = {
    "abort": "spark_eos._cli.abort:abort",
    "acls": "spark_eos._cli.acls:acls",
    "adopt": "spark_eos._cli.adopt:adopt",
    "broker": "spark_eos._cli.servers:broker",
    "class-archive": "spark_eos._cli.class_archive:class_archive",
    "consume": "spark_eos._cli.consume:consume",
    "dead-letters": "spark_eos._cli.dead_letters:dead_letters",
    "explain": "spark_eos._cli.explain:explain",
    "jars": "spark_eos._cli.jars:jars",
    "progress": "spark_eos._cli.progress:progress",
    "registry": "spark_eos._cli.servers:registry",
    "status": "spark_eos._cli.status:status",
    "topics": "spark_eos._cli.topics:topics",
    "verify": "spark_eos._cli.verify:verify_command",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Report spark-eos errors as text with exit status 1, without a traceback."""
        try:
            return super().invoke(ctx)
        except PrintableError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands)
@click.version_option(package_name="spark-eos", message="%(prog)s %(version)s")
def main() -> None:
    """Exactly-once into Kafka for PySpark Structured Streaming.

    \b
    Read from Kafka with your own Spark:
      spark-submit --jars "$(spark-eos jars)" job.py
    Show the state of a query:
      spark-eos status --bootstrap-servers localhost:9092 --group-id orders
    Verify that its output is exactly-once:
      spark-eos verify --bootstrap-servers localhost:9092 --group-id orders \\
          --input orders --output orders-enriched --position-header source
    Explain an error or a warning by the code at its end:
      spark-eos explain EOS54
    Print the commands that grant a query its ACLs:
      spark-eos acls --bootstrap-servers localhost:9092 --principal User:orders \\
          --group-id orders --source orders --target orders-enriched
    Count the records that a query could not write, by reason:
      spark-eos dead-letters count --bootstrap-servers localhost:9092 --topic orders-dlq
    Run Kafka for experiments, until Ctrl-C, and inspect its topics:
      spark-eos broker --port 9092 --topic orders:4
      spark-eos topics --bootstrap-servers localhost:9092
      spark-eos consume orders --bootstrap-servers localhost:9092 --limit 10
    Run a schema registry for experiments:
      spark-eos registry --port 8081
    """  # noqa: D301 - click needs the character itself
