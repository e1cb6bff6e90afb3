"""``spark-eos consume``."""

import base64
import json
from itertools import islice
from typing import Any

import click

from spark_eos._cli.query import Cluster, check_reached, cluster_options, moment
from spark_eos._client.checks import check_topic
from spark_eos._client.confluent_traps import headers_of
from spark_eos._kafka.committed_records import CommittedRecords


@click.command()
@click.argument("topic")
@cluster_options
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Stop after this many records."
)
def consume(*, topic: str, cluster: Cluster, limit: int | None) -> None:
    """Print a topic's committed records as lines of JSON, from its beginning to its current end.

    Keys, values and headers are printed as text if they are UTF-8, otherwise as
    {"base64": "..."}. Joins no group and commits nothing.
    """
    check_topic("TOPIC", topic)
    check_reached(cluster)
    records = CommittedRecords(cluster.client, topic, cluster.timeout)
    with records.consumer() as consumer:
        for message in islice(records.messages(consumer), limit):
            click.echo(_line(message))


def _line(message: Any) -> str:
    headers = headers_of(message)
    fields = {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": _time(message.timestamp()[1]),
        "key": _text(message.key()),
        "value": _text(message.value()),
        "headers": None if headers is None else [[name, _text(text)] for name, text in headers],
    }
    line = json.dumps(fields, ensure_ascii=False)
    # JSON doesn't escape all characters that a terminal obeys, such as reordering marks.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def _time(milliseconds: int) -> str | int:
    when = moment(milliseconds)
    return milliseconds if when is None else when.isoformat(timespec="milliseconds")


def _text(content: bytes | None) -> str | dict[str, str] | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
