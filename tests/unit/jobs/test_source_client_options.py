"""Options of commands that read from another cluster."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from spark_eos.jobs.client_options import client_options, source_client_options

TARGET = ["--bootstrap-servers", "a:1", "--kafka", "acks=all"]
SOURCE = ["--source-bootstrap-servers", "b:2"]


@click.command()
@client_options
@source_client_options
def _show(kafka: dict[str, str], source_kafka: dict[str, str] | None) -> None:
    click.echo(json.dumps([kafka, source_kafka]))


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(_show, [*TARGET, *arguments])


def test_each_cluster_has_its_own_settings(tmp_path: Path) -> None:
    file = tmp_path / "source.conf"
    file.write_text("# of the source\nsasl.password = s=3\nfetch.min.bytes=1\n")
    more = ["--source-kafka-config", str(file), "--source-kafka", "fetch.min.bytes=2"]
    kafka, source_kafka = json.loads(_run(*SOURCE, *more).stdout)
    assert kafka == {"bootstrap.servers": "a:1", "acks": "all"}
    assert source_kafka == {
        "bootstrap.servers": "b:2",
        "sasl.password": "s=3",
        "fetch.min.bytes": "2",
    }


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "source.conf"
    for text in ("acks=all\n", "# of the source\nacks=all\n"):
        file.write_text(text, encoding="utf-8-sig")
        result = _run(*SOURCE, "--source-kafka-config", str(file))
        assert json.loads(result.stdout)[1] == {"bootstrap.servers": "b:2", "acks": "all"}


def test_there_is_no_other_cluster_unless_it_is_given() -> None:
    assert json.loads(_run().stdout)[1] is None


@pytest.mark.parametrize("option", ["--source-kafka", "--source-kafka-config"])
def test_settings_of_no_cluster_are_refused(tmp_path: Path, option: str) -> None:
    file = tmp_path / "empty.conf"
    file.touch()
    result = _run(option, "acks=all" if option == "--source-kafka" else str(file))
    assert result.exit_code == 2
    assert f"Error: {option} needs --source-bootstrap-servers." in result.stderr


def test_settings_are_checked_as_those_of_the_other_cluster() -> None:
    result = _run(*SOURCE, "--source-kafka", "acks")
    assert result.exit_code == 2
    assert "a value is not of the form key=value" in result.stderr
