"""``make demo``."""

import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console

from demo.orders import produce_orders
from demo.scenario import COPIES, COUNTS, PARTITIONS, SOURCE, DemoError, Stage, run
from demo.step import Step
from spark_eos._cli.query import end_at
from spark_eos._jars.ivy import DownloadError
from spark_eos._jars.jar_sets import JarError, spark_kafka_jars
from spark_eos._jars.java import JavaError
from spark_eos.errors import SparkEosError
from spark_eos.testing import BrokerStartError, EmbeddedKafka


@click.command()
@click.option(
    "--orders",
    type=click.IntRange(min=1_000),
    default=200_000,
    show_default=True,
    help="Number of orders.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the random orders.")
@click.option(
    "--keep-logs",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory in which to keep the logs of Spark and Kafka.",
)
def demo(orders: int, seed: int, keep_logs: Path | None) -> None:
    """Show exactly-once on a real broker, compared with Spark's own sink.

    A query copies orders from topic to topic on the demonstration's own Kafka. All of its processes
    are killed twice (SIGKILL) in the middle of a batch and started again, the last time without the
    checkpoint. Then each order in the target is counted. A second query, which counts orders by
    customer and window, is also killed twice; its rows are compared with those of a batch query.
    The exit status is 1 if spark-eos has not written each order and each count exactly once.
    """
    end_at(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    console = Console(highlight=False)
    try:
        with tempfile.TemporaryDirectory(prefix="spark-eos-demo-") as directory:
            exactly_once = _run(orders, seed, Path(directory), keep_logs, console)
    except KeyboardInterrupt:
        click.echo("Stopped.", err=True)
        raise SystemExit(130) from None
    except (
        BrokerStartError,
        DemoError,
        DownloadError,
        JarError,
        JavaError,
        SparkEosError,
    ) as error:
        raise click.ClickException(str(error)) from error
    if not exactly_once:
        console.print("[bold red]FAILED[/]: spark-eos has not written each row exactly once.")
        raise SystemExit(1)
    console.print("[bold green]OK[/]: spark-eos wrote each order and each count exactly once.")


def _run(orders: int, seed: int, directory: Path, keep_logs: Path | None, console: Console) -> bool:
    """Runs both scenarios; returns True if spark-eos has written exactly once in both."""
    logs = keep_logs or directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with Step(console, "Downloading the jars and starting Kafka"):
            spark_kafka_jars()
            kafka = stack.enter_context(EmbeddedKafka())
        kafka.create_topic(SOURCE, PARTITIONS)
        with Step(console, f"{orders:,} orders to {PARTITIONS} partitions", orders) as step:
            produce_orders(kafka.bootstrap_servers, SOURCE, orders, seed, step.reached)
        stage = Stage(kafka, orders, directory, logs, console)
        try:
            copied = run(COPIES, stage)
            return run(COUNTS, stage) and copied
        finally:
            (logs / "kafka.log").write_text(kafka.log(), encoding="utf-8")


if __name__ == "__main__":
    demo(prog_name="make demo")
