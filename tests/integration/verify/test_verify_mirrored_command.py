"""``spark-eos verify`` on a query that reads from one cluster and writes to another."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from support.mirroring import MirroredFlow
from support.operating import invoked
from support.page_commands import commands
from support.pages import code_blocks
from support.planting import ALL, Writer


@pytest.fixture
def flow(filled_mirrored_flow: MirroredFlow) -> MirroredFlow:
    """A flow with sound output, except for one duplicate."""
    Writer(filled_mirrored_flow).write([*ALL, ALL[0]], {0: 5, 1: 4})
    return filled_mirrored_flow


def test_the_documented_command(flow: MirroredFlow) -> None:
    (command,) = code_blocks("verify", "bash")
    instead = {
        "west:9092": flow.bootstrap_servers,
        "east:9092": flow.source_servers,
        "orders-to-west": flow.group_id,
        "orders": flow.source,
        "source": "src",
    }
    (words,) = commands(command)
    assert set(instead) <= set(words)
    given = [instead.get(word, word) for word in words[1:]]
    # The page's target has the source's name.
    given[given.index("--output") + 1] = flow.target
    result = invoked(given)
    assert result.exit_code == 1, result.output
    assert result.stdout.startswith("ANOMALIES: 10 records in, 11 out")


def run(flow: MirroredFlow, *more: str) -> Result:
    where = ["--bootstrap-servers", flow.bootstrap_servers]
    topics = ["--input", flow.source, "--output", flow.target, "--group-id", flow.group_id]
    given = ["verify", *where, *topics, "--position-header", "src", "--timeout", "5", *more]
    return invoked(given)


def test_the_source_clusters_options(flow: MirroredFlow, tmp_path: Path) -> None:
    file = tmp_path / "source.conf"
    file.write_text("client.id=from-a-file\nsecurity.protocol=TLS\n")
    more = ["--source-kafka-config", str(file), "--source-kafka", "security.protocol=PLAINTEXT"]
    servers = ["--source-bootstrap-servers", flow.source_servers]
    result = run(flow, "--json", *servers, *more)
    assert result.exit_code == 1, result.output
    document = json.loads(result.stdout)
    assert (document["records_in"], document["records_out"]) == (10, 11)
    found = {kind: one["count"] for kind, one in document["found"].items() if one["count"]}
    assert found == {"duplicates": 1, "outputs_without_offset": 1, "not_yet_processed": 1}
    assert [one["committed_offset"] for one in document["group"]] == [5, 4]
    result = run(flow, *servers, *more[:2])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: source_kafka: ")
    assert "must be one of PLAINTEXT" in result.stderr
