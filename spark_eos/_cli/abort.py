"""``spark-eos abort``."""

import sys
import time
from collections import Counter
from collections.abc import Sequence

import click
from rich.text import Text

from spark_eos._cli.query import NotKnownError, Query, connected, query_options, terminal
from spark_eos._client.printable import counted, printable
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.groups import UNKNOWN, DescribedMember, describe_if_known
from spark_eos._kafka.open_transactions import OpenTransaction, lingering_transactions
from spark_eos._kafka.silent_brokers import SilentBrokers, does_not_answer
from spark_eos._kafka.transactions import fence_producer
from spark_eos._status.tables import host, transactions
from spark_eos.errors import SparkEosError


@click.command()
@query_options
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
def abort(*, query: Query, yes: bool) -> None:
    """Abort a query's open transactions, for example those left by a killed query.

    Until the transactions end, read_committed consumers can't read beyond them. Starting the query
    also aborts them, and brokers abort each transaction at its timeout. If the query is running, it
    writes the aborted transactions again.

    Exit status 2 if a broker does not answer: the transactions that it coordinates are unknown.
    """
    with connected(query) as connections:
        silent = SilentBrokers(connections)
        lingering = lingering_transactions(
            connections, query.prefix, query.group_id, query.deadline(), silent
        )
        wanted = f"open transactions of prefix {query.prefix} and group {query.group_id}"
        if not lingering:
            _check_all_known(silent, f"it is unknown whether there are {wanted}")
            click.echo(f"No {wanted}.")
            return
        group = describe_if_known(connections, query.group_id, query.deadline(), silent)
        terminal().print(transactions(lingering, time.time()), Text())
        if group is UNKNOWN:
            what = f"Group {query.group_id}'s coordinator does not answer"
            terminal().print(Text(f"{what}: it is unknown whether a query is running.\n"))
        if group.members:
            terminal().print(_warning(query.group_id, group.members))
        if not yes:
            if not _may_ask():
                raise click.ClickException(
                    "nothing was ended: there is no terminal to ask for confirmation. Give --yes "
                    "to end the transactions without confirmation"
                )
            if not _agreed(f"End {counted(len(lingering), 'open transaction')}?"):
                click.echo("Nothing was ended.")
                raise SystemExit(1)
            shown = lingering
            # End only transactions that the user has agreed to end: others may have begun since.
            now = lingering_transactions(
                connections, query.prefix, query.group_id, query.deadline(), silent
            )
            lingering = tuple(
                transaction
                for transaction in now
                if any(transaction.same_as(other) for other in shown)
            )
        if lingering:
            _end(connections, query, lingering)
        else:
            click.echo("They have ended in the meantime.")
        _check_all_known(silent, f"it is unknown whether there are other {wanted}")


def _check_all_known(silent: SilentBrokers, unknown: str) -> None:
    if silent.names:
        raise NotKnownError(
            f"{does_not_answer(silent.names)}, but may coordinate transactions: {unknown}. Run the "
            "command again when the broker answers"
        )


def _may_ask() -> bool:
    return sys.stdin.isatty()


def _agreed(question: str) -> bool:
    try:
        return click.confirm(question)
    except click.Abort:  # Ctrl-C: click would print "Aborted!", which is misleading here
        click.echo()
        return False


def _warning(group_id: str, members: Sequence[DescribedMember]) -> Text:
    text = Text(
        f"Group {group_id} has live members: a query may be running, and some of the transactions "
        "may be its current ones. Ending them loses nothing, but the query must write them again.\n"
    )
    # A query of an earlier version may have many members, all with the same client id.
    for (client_id, where), number in sorted(
        Counter((m.client_id, host(m)) for m in members).items()
    ):
        text.append(
            f"  client id {printable(client_id)} on host {where}: {counted(number, 'member')}\n"
        )
    return text


def _end(connections: Connections, query: Query, transactions: Sequence[OpenTransaction]) -> None:
    failed = 0
    for transaction in transactions:
        name = printable(transaction.transactional_id)
        try:
            # Send the transaction's own timeout: the brokers have allowed it before.
            fence_producer(
                connections, transaction.transactional_id, transaction.timeout_ms, query.deadline()
            )
        except SparkEosError as error:
            click.echo(f"{name}: {error!s}", err=True)
            failed += 1
        else:
            click.echo(f"{name}: ended")
    number = counted(len(transactions), "open transaction")
    if failed:
        raise click.ClickException(f"not ended: {failed} of {number}")
    click.echo(f"Ended {number}.")
