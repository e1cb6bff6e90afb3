"""Commands and unusual input: other clusters' settings, names of others, large numbers."""

import io
from typing import cast

import pytest
from click.testing import CliRunner
from rich.console import Console

from spark_eos._cli import main
from spark_eos._cli import verify as verify_module
from spark_eos._cli.findings import verify_tables
from spark_eos._client.checks import check_positive
from spark_eos._client.locations import without_credentials
from spark_eos._client.settings import ClientSettings
from spark_eos.acls import read_topic
from spark_eos.errors import ConfigurationError
from spark_eos.verify import Comparison, Difference, Finding, RowExample
from spark_eos.verify.rows import ParquetRows

SERVERS = ("--bootstrap-servers", "127.0.0.1:9")


def test_an_unexpected_error_of_verify_is_no_anomaly(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(verify_module, "verify", fail)
    done = CliRunner().invoke(main, ["verify", *SERVERS, "--input", "in", "--output", "out"])
    assert done.exit_code == 2
    assert "RuntimeError: unexpected" in done.output


def test_the_other_clusters_administrator_has_a_file_of_its_own() -> None:
    given = ["--principal", "User:q", "--group-id", "g", "--source", "in", "--target", "out"]
    more = ["--source-bootstrap-servers", "127.0.0.2:9", "--progress-topic", "p"]
    files = ["--command-config", "target.properties"]
    for there in ([], ["--source-command-config", "source.properties"]):
        done = CliRunner().invoke(main, ["acls", *SERVERS, *given, *more, *files, *there])
        assert done.exit_code == 0, done.output
        of_source = [line for line in done.output.splitlines() if "127.0.0.2" in line]
        assert of_source
        assert all("target.properties" not in line for line in of_source)
        assert all(("source.properties" in line) == bool(there) for line in of_source)


@pytest.mark.parametrize(
    "more", [("--source-principal", "User:r"), ("--source-command-config", "f")], ids=lambda m: m[0]
)
def test_options_of_a_source_cluster_need_one(more: tuple[str, str]) -> None:
    given = ["--principal", "User:q", "--group-id", "g", "--source", "in", "--target", "out"]
    done = CliRunner().invoke(main, ["acls", *SERVERS, *given, *more])
    assert done.exit_code == 2
    assert f"{more[0]} needs --source-bootstrap-servers." in done.output


def test_commands_for_a_secured_cluster_name_the_file_they_need() -> None:
    plain = {"bootstrap.servers": "b:9093"}
    secured = {**plain, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    secured |= {"sasl.username": "alice", "sasl.password": "secret"}
    for settings, config in ((plain, False), (secured, True)):
        principal = ClientSettings(settings).principal
        assert ("--command-config FILE" in principal.command(read_topic("t"))) == config
        assert ("--kafka-config FILE" in principal.own_tool("abort", "--group-id", "g")) == config


def test_names_of_others_are_no_commands_to_the_terminal() -> None:
    example = RowExample("k", source="\x1b[2J.parquet:0", detail="held up by \u202eid")
    kinds = [kind for kind in Difference if kind is not Difference.VALUE]
    found: dict[Difference, Finding[RowExample]] = {kind: Finding() for kind in kinds}
    found[Difference.MISSING] = Finding(1, (example,))
    console = Console(file=io.StringIO(), width=200)
    console.print(
        verify_tables(Comparison(rows_expected=1, records_out=0, by_key=False, found=found))
    )
    shown = cast("io.StringIO", console.file).getvalue()
    assert "\\x1b[2J.parquet:0" in shown
    assert "\\u202eid" in shown
    assert {"\x1b", "\u202e"}.isdisjoint(shown)


@pytest.mark.parametrize("offset", ["9" * 19, "9" * 20, "٣"])
def test_offsets_that_kafka_can_not_represent_are_refused(offset: str) -> None:
    done = CliRunner().invoke(
        main, ["progress", *SERVERS, "--group-id", "g", "--set", f"orders:0={offset}"]
    )
    assert done.exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["status", "--group-id", "g", "--timeout", "nan"],
        ["status", "--group-id", "g", "--watch", "nan"],
        ["verify", "--input", "in", "--output", "out", "--key", "--timeout", "NaN"],
        ["verify", "--input", "in", "--output", "out", "--key", "--examples", str(1 << 63)],
    ],
    ids=lambda words: f"{words[0]} {words[-2]}",
)
def test_numbers_that_can_not_be_used_are_refused(words: list[str]) -> None:
    done = CliRunner().invoke(main, [*words, *SERVERS])
    assert (done.exit_code, f"Invalid value for '{words[-2]}'" in done.output) == (2, True)


def test_no_time_limit_is_nan() -> None:
    with pytest.raises(ConfigurationError, match="timeout"):
        check_positive(timeout=float("nan"))


@pytest.mark.parametrize("option", ["--set", "--pyspark"])
def test_an_empty_name_stands_for_no_other_jars(option: str) -> None:
    done = CliRunner().invoke(main, ["jars", option, ""])
    assert (done.exit_code, done.stdout) == (1, "")


def test_a_group_that_is_not_utf8_is_refused() -> None:
    done = CliRunner().invoke(main, ["status", *SERVERS, "--group-id", "a\udce9"])
    assert done.exit_code != 0
    assert "is not UTF-8" in done.output


def test_no_credentials_of_a_location_are_shown() -> None:
    with pytest.raises(ConfigurationError) as refused:
        ParquetRows("s3a://key:secret@bucket/expected?endpoint_override=127.0.0.1:9&scheme=http")
    assert "secret" not in str(refused.value)
    assert "s3a://***@bucket" in str(refused.value)
    assert without_credentials("s3a://key:se/cret@bucket/rows") == "s3a://***@bucket/rows"
    signed = "'abfs://rows@account/rows?sp=rl&sig=se%2Fcret%3D&sv=2024-11-04' can't be opened"
    assert without_credentials(signed) == signed.replace("se%2Fcret%3D", "***")
    for text in ("no user@host", "abfs://container@account/rows", "s3://bucket/a@b"):
        assert without_credentials(text) == text
