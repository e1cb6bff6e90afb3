"""``spark-eos acls``."""

import json

import click

from spark_eos._cli.query import group_option, json_option, prefix_option, topics_option
from spark_eos._client.checks import check_prefix, check_text, check_topic
from spark_eos._kafka.transactional_ids import id_prefix
from spark_eos.acls import Acl, Principal, Purpose, acls_for, source_acls, without_implied
from spark_eos.jobs.client_options import bootstrap_servers_option


def _principal(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> str | None:
    if text is not None and ":" not in text:
        raise click.BadParameter(f"{text!r} has no type; write it as User:{text}")
    return text


@click.command()
@bootstrap_servers_option
@click.option(
    "--principal",
    required=True,
    callback=_principal,
    metavar="TYPE:NAME",
    help="The client's principal on the brokers, such as User:alice.",
)
@group_option
@topics_option("--source", "sources", "Topic that the query reads; repeatable.", required=True)
@topics_option("--target", "targets", "Topic that the query writes to; repeatable.", required=True)
@click.option(
    "--progress-topic",
    metavar="TOPIC",
    help="The query's progress_topic, if it mirrors a cluster or stages its batches.",
)
@click.option(
    "--source-bootstrap-servers",
    metavar="HOST:PORT,...",
    help="The cluster that a mirrored query reads. Needs --progress-topic.",
)
@click.option(
    "--source-principal",
    callback=_principal,
    metavar="TYPE:NAME",
    help="The client's principal in that cluster.  [default: --principal]",
)
@click.option(
    "--dead-letter-topic",
    metavar="TOPIC",
    help="The query's dead-letter topic, if it has one.",
)
@prefix_option
@click.option(
    "--for",
    "purposes",
    multiple=True,
    type=click.Choice([purpose.value for purpose in Purpose]),
    default=[Purpose.QUERY.value],
    show_default=True,
    help="What the principal may do: run the query, or a command for it; repeatable.",
)
@click.option(
    "--command-config",
    metavar="FILE",
    help="Properties file with which the administrator's kafka-acls.sh connects.",
)
@click.option(
    "--source-command-config",
    metavar="FILE",
    help="The same for the cluster of --source-bootstrap-servers.",
)
@json_option
def acls(
    *,
    bootstrap_servers: str,
    principal: str,
    group_id: str,
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    progress_topic: str | None,
    source_bootstrap_servers: str | None,
    source_principal: str | None,
    dead_letter_topic: str | None,
    prefix: str,
    purposes: tuple[str, ...],
    command_config: str | None,
    source_command_config: str | None,
    json_: bool,
) -> None:
    """Print the commands that grant a query exactly the ACLs it needs.

    Does not connect to the cluster. If an ACL is missing, the query stops with an error that names
    it.
    """
    check_prefix("--prefix", prefix)
    check_text("--group-id", group_id)
    named = [
        *(("--source", topic) for topic in sources),
        *(("--target", topic) for topic in targets),
        ("--progress-topic", progress_topic),
        ("--dead-letter-topic", dead_letter_topic),
    ]
    for what, name in named:
        if name is not None:
            check_topic(what, name)
    mirrored = source_bootstrap_servers is not None
    of_source = {
        "--source-principal": source_principal,
        "--source-command-config": source_command_config,
    }
    for option, text in of_source.items():
        if text is not None and not mirrored:
            raise click.UsageError(f"{option} needs --source-bootstrap-servers.")
    if mirrored and progress_topic is None:
        raise click.UsageError(
            "A query that reads another cluster keeps its progress in a progress topic: give "
            "--progress-topic too."
        )
    ids = id_prefix(prefix, group_id)
    wanted = [Purpose(purpose) for purpose in purposes]
    given = (group_id, ids, sources, targets, progress_topic, dead_letter_topic)
    target = Principal(principal, bootstrap_servers, command_config)
    bindings = without_implied(
        acl for purpose in wanted for acl in acls_for(purpose, *given, mirrored=mirrored)
    )
    granted = [(target, bindings)]
    if source_bootstrap_servers is not None:
        reader = source_principal or principal
        there = Principal(reader, source_bootstrap_servers, source_command_config)
        read = (acl for purpose in wanted for acl in source_acls(purpose, sources))
        granted.append((there, without_implied(read)))
    commands = [(to, acl) for to, needed in granted for acl in needed]
    if json_:
        click.echo(json.dumps([_document(*binding) for binding in commands], indent=2))
        return
    for to, acl in commands:
        if acl.only_until is not None:
            click.echo(f"# Needed only until {acl.only_until}:")
        click.echo(to.command(acl))


def _document(principal: Principal, acl: Acl) -> dict[str, str]:
    return {
        "bootstrap_servers": principal.bootstrap_servers,
        "principal": str(principal.principal),
        "operation": acl.operation.value,
        "resource_type": acl.resource.value,
        "pattern_type": acl.pattern_type,
        "name": acl.name,
    }
