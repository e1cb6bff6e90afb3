"""What a principal needs to mirror topics of another cluster."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from spark_eos.client.settings import ClientSettings
from spark_eos.errors import AuthorizationError
from spark_eos.kafka.connection import Wire
from spark_eos.testing import EmbeddedKafka
from spark_eos.testing.broker_admin import admin_client
from support.granting import Guarded, guarded_kafka
from support.mirroring import MirroredFlow, mirrored_run


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[EmbeddedKafka, EmbeddedKafka]]:
    with guarded_kafka() as broker, guarded_kafka() as other:
        yield broker, other


@dataclass
class GuardedMirror(Guarded, MirroredFlow):
    """Source and target on guarded brokers, on which one principal has rights of its own."""

    _granting_at_source: bool = False

    @property
    def source_kafka(self) -> dict[str, Any]:
        """See `MirroredFlow`."""
        return {**self.kafka, "bootstrap.servers": self.servers_of(self.other)}

    def grant(self, *commands: str) -> None:
        """See `Guarded`; each command says on which of the two."""
        for command in commands:
            with self._where(command):
                super().grant(command)

    def revoke(self, command: str) -> None:
        """See `Guarded`."""
        with self._where(command):
            super().revoke(command)

    @contextmanager
    def _where(self, command: str) -> Iterator[None]:
        self._granting_at_source = self.source_kafka["bootstrap.servers"] in command
        yield
        self._granting_at_source = False

    def _admin(self) -> AdminClient:
        return admin_client(
            (self.other if self._granting_at_source else self.broker).bootstrap_servers
        )

    @contextmanager
    def wire(self) -> Iterator[Wire]:
        """The principal's own connections: the run's driver has no others."""
        with closing(Wire(ClientSettings(self.kafka))) as wire:
            yield wire


@pytest.fixture
def flow(guarded: tuple[EmbeddedKafka, EmbeddedKafka], tmp_path: Path) -> GuardedMirror:
    """Topics, a group and a principal without any right."""
    places = (str(tmp_path / "checkpoint"), str(tmp_path / "workers"))
    return GuardedMirror(guarded[0], *places, other=guarded[1])


def _granted(flow: GuardedMirror) -> dict[str, str]:
    """Grants all that is printed; the commands by operation and kind of name."""
    servers = flow.source_kafka["bootstrap.servers"]
    more = ["--progress-topic", flow.progress, "--source-bootstrap-servers", servers]
    commands = flow.commands(*more)
    flow.grant(*commands)
    names = {flow.source: "source", flow.target: "target", flow.progress: "progress"}
    found = {}
    for command in commands:
        words = command.split()
        found[f"{words[words.index('--operation') + 1]} {names.get(words[-1], 'other')}"] = command
    return found


def test_just_the_acls_printed_are_enough(flow: GuardedMirror) -> None:
    commands = _granted(flow)
    assert {
        "Read source",
        "Write target",
        "Read progress",
        "Create progress",
        "Alter progress",
    } <= {*commands}
    with mirrored_run(flow) as runs:
        runs.batch(3, 4)
        flow.other.add_partitions(flow.source, 4)
        runs.batch(3, 4, 5, 6)
    assert flow.committed() == {0: 3, 1: 4, 2: 5, 3: 6}
    # With its partitions in place, the topic needs neither to be created nor altered.
    with (
        flow.without(commands["Create progress"]),
        flow.without(commands["Alter progress"]),
        mirrored_run(flow) as runs,
    ):
        runs.batch(4, 5, 6, 7)
    assert flow.committed() == {0: 4, 1: 5, 2: 6, 3: 7}


def test_without_alter(flow: GuardedMirror) -> None:
    commands = _granted(flow)
    with mirrored_run(flow) as runs:
        runs.batch(3, 4)
        flow.other.add_partitions(flow.source, 3)
        with (
            flow.without(commands["Alter progress"]),
            pytest.raises(AuthorizationError) as refusal,
        ):
            runs.batch(3, 4, 5)
    text = str(refusal.value)
    assert f"lacks Alter on topic '{flow.progress}'" in text
    assert f"kafka-topics.sh --bootstrap-server {flow.kafka['bootstrap.servers']} --alter" in text
    assert f"--topic {flow.progress} --partitions 3" in text


def test_without_read_of_the_source(flow: GuardedMirror) -> None:
    commands = _granted(flow)
    with (
        flow.without(commands["Read source"]),
        mirrored_run(flow) as runs,
        pytest.raises(AuthorizationError, match=f"lacks Read on topic '{flow.source}'"),
    ):
        runs.batch(3, 4)
    assert flow.values() == []
