"""A mirrored flow on two guarded brokers."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import AdminClient

from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos.testing.broker_admin import admin_client
from support.granting import Guarded
from support.mirroring import MirroredFlow


@dataclass
class GuardedMirror(Guarded, MirroredFlow):
    """Source and target on guarded brokers, each with its own ACLs for one principal."""

    _granting_at_source: bool = False

    @property
    def source_kafka(self) -> dict[str, Any]:
        """See `MirroredFlow`."""
        return {**self.kafka, "bootstrap.servers": self.servers_of(self.other)}

    def grant(self, *commands: str) -> None:
        """See `Guarded`; each command names the broker that it is for."""
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
    def connections(self) -> Iterator[Connections]:
        """The principal's connections; the run's driver uses no others."""
        with closing(Connections(ClientSettings(self.kafka))) as connections:
            yield connections

    def grant_all(self, *more: str) -> dict[str, str]:
        """Grants all printed ACLs; returns the commands by operation and kind of name."""
        servers = self.source_kafka["bootstrap.servers"]
        names = {self.source: "source", self.target: "target", self.progress: "progress"}
        commands = self.commands(
            "--progress-topic", self.progress, "--source-bootstrap-servers", servers, *more
        )
        self.grant(*commands)
        found = {}
        for command in commands:
            words = command.split()
            found[f"{words[words.index('--operation') + 1]} {names.get(words[-1], 'other')}"] = (
                command
            )
        return found
