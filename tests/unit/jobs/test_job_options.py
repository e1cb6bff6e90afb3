"""Arguments of the jobs for spark-submit."""

from typing import Any

import click
import pytest
from click.testing import CliRunner

from spark_eos.jobs.options import JobOptions, job_options
from support.jobs import GIVEN, job


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--available-now", "--trigger", "1 second"], "Give --available-now or --trigger, not"),
        (["--trigger", "soon"], "'soon' is not an interval such as '1 second'"),
        (["--kafka", "acks"], "a value is not of the form key=value"),
        (["--starting-offsets", "7"], "'7' is not one of 'earliest', 'latest'"),
        (["--max-offsets-per-trigger", "0"], "0 is not in the range x>=1"),
        (["--log-format", "xml"], "'xml' is not one of 'text', 'json'"),
        (["--metrics-port", "0"], "0 is not in the range 1<=x<=65535"),
        # Options of the sink, by the names under which they are given.
        (["--max-attempts", "0"], "--max-attempts must be a number above 0, not 0"),
        (
            ["--max-transaction-ms", "60000"],
            "--max-transaction-ms=60000 must be below --transaction-timeout-ms=60000",
        ),
        (["--transactional-id-prefix", "a/b"], "--transactional-id-prefix='a/b' contains a /"),
        (["--progress-topic", "a b"], "--progress-topic='a b' is not a valid topic name"),
        (["--max-dead-letters", "-1"], "--max-dead-letters is -1; it must be a whole number"),
        (["--max-dead-letters", "5"], "--max-dead-letters needs --dead-letter-topic"),
        (["--dead-letter-stacktrace"], "--dead-letter-stacktrace needs --dead-letter-topic"),
    ],
)
@pytest.mark.parametrize("name", ["relay", "enrich_orders"])
def test_bad_arguments(name: str, more: list[str], message: str) -> None:
    result = CliRunner().invoke(job(name).main, [*GIVEN, *more])
    assert result.exit_code == 2
    assert message in result.output.splitlines()[-1]


@pytest.mark.parametrize("name", ["relay", "enrich_orders"])
def test_required_arguments_and_help(name: str) -> None:
    command = job(name).main
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 2
    assert "Missing option '--bootstrap-servers'" in result.output
    text = CliRunner().invoke(command, ["--help"]).output
    for parameter in command.params:
        assert parameter.opts[0] in text
        assert parameter.help


@pytest.mark.parametrize("more", [[], ["--moved-from", "5f1c0a7e"]])
def test_a_moved_group_is_the_sinks_option(more: list[str]) -> None:
    @click.command()
    @job_options
    def show(*, options: JobOptions, **_: Any) -> None:
        click.echo(str(options.sink.get("moved_from")))

    result = CliRunner().invoke(show, [*GIVEN, *more])
    assert result.stdout.strip() == (more[1] if more else "None"), result.output
