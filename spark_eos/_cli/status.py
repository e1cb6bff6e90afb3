"""``spark-eos status``."""

import json
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from spark_eos._cli.query import (
    Query,
    Seconds,
    end_at,
    json_option,
    query_options,
    terminal,
    topics_option,
)
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.open_transactions import OpenTransaction
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._status.status import Status, ask_status
from spark_eos._status.tables import host
from spark_eos.errors import SparkEosError
from spark_eos.jobs.client_options import source_client_options


@click.command()
@query_options
@source_client_options
@topics_option(
    "--target",
    "targets",
    "A topic that the query writes to, to show what holds back its consumers; repeatable.",
)
@json_option
@click.option(
    "--watch",
    type=Seconds(),
    is_flag=False,
    flag_value=2.0,
    metavar="[SECONDS]",
    help="Show the state again every SECONDS, 2 by default, until Ctrl-C.",
)
def status(
    *,
    query: Query,
    source_kafka: Mapping[str, str] | None,
    targets: Sequence[str],
    json_: bool,
    watch: float | None,
) -> None:
    """Show the state of a query: its group, offsets, lag and open transactions.

    Changes nothing. Exit status 1 if there is no such group; 2 if a broker does not answer, so that
    some values are unknown. The lag is unknown where the group has no offset. To see the lag of a
    mirrored query, give --source-bootstrap-servers.
    """
    if watch is not None:
        end_at(signal.SIGINT)
    try:
        status = _status(query, source_kafka, targets)
        _show(status, json_=json_, clear=watch is not None)
        while watch is not None:
            time.sleep(watch)
            try:
                status = _status(query, source_kafka, targets)
            except SparkEosError as error:
                # The cluster may be restarting, or the group may be gone for now.
                click.echo(f"Error: {error!s}", err=True)
            else:
                _show(status, json_=json_, clear=True)
    except KeyboardInterrupt:
        if watch is None:
            raise
        return
    if status.silent:
        raise SystemExit(2)


def _status(query: Query, source_kafka: Mapping[str, str] | None, targets: Sequence[str]) -> Status:
    return ask_status(
        query.client,
        query.group_id,
        query.prefix,
        query.timeout,
        "--timeout",
        source_client=ClientSettings.of_source(source_kafka),
        targets=targets,
        check_targets=True,
    )


def _show(status: Status, *, json_: bool, clear: bool) -> None:
    if json_:
        click.echo(as_json(status))
        return
    console = terminal()
    if clear:
        console.clear()  # This affects only terminals; in files, each output follows the last.
        console.print(time.strftime("%H:%M:%S"))
    console.print(status)
    if clear and not console.is_terminal:
        console.print()


def as_json(status: Status) -> str:
    """Return the JSON document. All of its keys are public, even those that are field names."""
    # Null means unknown. *_ms are milliseconds, since 1970 for times.
    group, cluster, staged, now = status.group, status.cluster, status.staged, status.taken_at
    document = {
        "group": {
            "id": status.group_id,
            "state": group.state,
            "epoch": group.epoch,
            "assignment_epoch": group.assignment_epoch,
        },
        "members": [
            _fields(member, client_host="host")
            | {
                "host": host(member),
                "assigned": None if member.assigned is None else _named(member.assigned),
            }
            for member in group.members
        ],
        "partitions": [
            _fields(
                partition,
                committed="committed_offset",
                member="member_id",
                log_start="log_start_offset",
            )
            | {"lag": partition.lag, "deleted": partition.deleted}
            for partition in status.partitions
        ],
        "lag": status.lag,
        # Null if the group's offsets don't show the delivery, as with direct delivery.
        "delivery": status.delivery,
        "staged": staged
        and {
            "progress_topic": staged.topic,
            "query_id": staged.batch.query,
            "batch": staged.batch.batch,
            "directory": staged.batch.directory,
            "rows": staged.batch.rows,
            "files": staged.batch.files,
            "files_written": staged.files_written,
            "written": staged.written,
        },
        # Offsets whose metadata text was written by another client.
        "foreign_offsets": _named(status.foreign),
        "transactional_id_prefix": status.prefix,
        "open_transactions": [
            _transaction(transaction, now) for transaction in status.transactions
        ],
        "held_back": [
            _fields(blocked)
            | {"transaction": blocked.transaction and _transaction(blocked.transaction, now)}
            for blocked in status.held_back
        ],
        # Values that only these brokers know are null or missing.
        "silent_brokers": list(status.silent),
        "brokers": [_fields(broker, node_id="id") for broker in cluster.brokers],
        "transaction_version": cluster.transaction_version,
        "offset_commit_version": cluster.offset_commit_version,
        "commits_by_topic_id": cluster.offset_commit_version == 6,
        "problem": cluster.problem,
    }
    return json.dumps(document, indent=2)


def _fields(value: Any, **names: str) -> dict[str, Any]:
    """Return a value's fields, some of them renamed."""
    names["last_stable"] = "last_stable_offset"
    return {names.get(name, name): content for name, content in asdict(value).items()}


def _transaction(transaction: OpenTransaction, now: float) -> dict[str, Any]:
    age = transaction.age(now)
    return asdict(transaction) | {
        "age_seconds": None if age is None else round(age, 3),
        "partitions": _named(transaction.partitions),
    }


def _named(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [partition._asdict() for partition in sorted(partitions)]
