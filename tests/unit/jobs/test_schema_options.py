"""Options of jobs that write records with a registry's schemas."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from spark_eos.jobs.schema_options import Recoding, schema_options

URL = "url=http://user:secret@h:1"
OTHER = ["--source-schema-registry", "url=http://h:2"]


@click.command()
@schema_options
def _show(recoding: Recoding | None) -> None:
    click.echo(repr(recoding))


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(_show, arguments)


def test_source_and_target_share_what_is_given_once(tmp_path: Path) -> None:
    assert _run().stdout == "None\n"
    file = tmp_path / "registry.conf"
    file.write_text(f"# of the target\n{URL}\n")
    config = ["--schema-registry-config", str(file)]
    target = "target=SchemaRegistry('http://h:1')"
    found = _run(*config, "--value-subject", "a", "--key-subject", "b", *OTHER)
    assert found.stdout == (
        f"Recoding(source=SchemaRegistry('http://h:2'), {target}, "
        "subjects={'value': ('a', 'a'), 'key': ('b', 'b')})\n"
    )
    found = _run("--schema-registry", URL, "--value-subject", "a", "--source-value-subject", "s")
    assert found.stdout == (
        f"Recoding(source=SchemaRegistry('http://h:1'), {target}, "
        "subjects={'value': ('s', 'a')})\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schema-registry", URL], "A schema registry needs --value-subject or --key-subject."),
        (OTHER, "A schema registry needs --value-subject or --key-subject."),
        (["--key-subject", "a"], "Subjects need --schema-registry url=..."),
        (["--key-subject", "a", *OTHER], "Subjects need --schema-registry url=..."),
        (["--source-key-subject", "a"], "--source-key-subject needs --key-subject."),
        (
            ["--value-subject", "a", "--schema-registry", URL, "--schema-registry", "no=1"],
            "schema registry: Unrecognized properties: no",
        ),
        (["--schema-registry", "http://alice:sesame@a"], "a value is not of the form key=value"),
    ],
)
def test_options_that_can_not_be_used_are_refused(arguments: list[str], message: str) -> None:
    result = _run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
