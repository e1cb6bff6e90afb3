"""Commands refuse client settings that do not exist, like the sink, before they ask any broker."""

import time

import pytest
from click.testing import CliRunner

from spark_eos import verify
from spark_eos._cli import main
from spark_eos.errors import ConfigurationError

TARGET = ["--bootstrap-servers", "localhost:1"]
GROUP = ["--group-id", "orders"]
COMMANDS = {
    "status": ["status", *GROUP],
    "progress": ["progress", *GROUP],
    "topics": ["topics"],
    "consume": ["consume", "orders"],
    "abort": ["abort", *GROUP],
    "adopt": ["adopt", *GROUP, "--checkpoint", "checkpoints/orders"],
    "dead-letters": ["dead-letters", "count", "--topic", "orders-dlq"],
    "verify": ["verify", "--input", "orders", "--output", "prices", "--key"],
    "verify --expect": ["verify", "--expect", "topic:a", "--output", "prices", "--key"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_setting_is_refused_at_once(command: str) -> None:
    began = time.monotonic()
    words = [*COMMANDS[command], *TARGET, "--kafka", "no.such.setting=1"]
    made = CliRunner().invoke(main, words)
    assert made.exit_code
    assert "kafka['no.such.setting']: No such configuration property" in made.output
    assert time.monotonic() - began < 10  # the commands' own limit is 15 s


def test_an_unknown_setting_of_the_source_is_refused() -> None:
    words = ["status", *GROUP, *TARGET, "--source-bootstrap-servers", "localhost:1"]
    made = CliRunner().invoke(main, [*words, "--source-kafka", "no.such.setting=1"])
    assert "source_kafka: kafka['no.such.setting']: No such configuration" in made.output
    with pytest.raises(ConfigurationError, match=r"no\.such\.setting"):
        verify.verify(
            kafka={"bootstrap.servers": "localhost:1", "no.such.setting": 1},
            inputs=["orders"],
            outputs=["prices"],
            key=True,
        )
