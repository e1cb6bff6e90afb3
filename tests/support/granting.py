"""A broker that allows only what ACLs grant, and principals to grant them to."""

import argparse
import itertools
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from click.testing import CliRunner
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from spark_eos._cli import main
from spark_eos.testing import BrokerSecurity, EmbeddedKafka, SecuredListener
from spark_eos.testing.broker_admin import admin_client
from support.flow import Flow
from support.queries import until

_LISTENER: Final = "ACLS"
_MECHANISM: Final = "PLAIN"
_SETTINGS: Final = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": _MECHANISM}
_RESOURCES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
}
# The client's names, such as DESCRIBE_CONFIGS, by kafka-acls.sh's names, such as DescribeConfigs.
_OPERATIONS: Final = {name.title().replace("_", ""): name for name in AclOperation.__members__}
# A principal for each test; the broker must know users of PLAIN before it starts.
_USERS: Final = [f"user-{number}" for number in range(200)]
_unused = itertools.cycle(_USERS)


@contextmanager
def guarded_kafka() -> Iterator[EmbeddedKafka]:
    """A broker with StandardAuthorizer, for `Guarded` flows."""
    security = BrokerSecurity(
        listeners={_LISTENER: SecuredListener("SASL_PLAINTEXT", (_MECHANISM,))},
        users={user: _password(user) for user in _USERS},
        super_users=[],
    )
    # The interval at which the broker looks for transactions past their timeout.
    quickly = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with EmbeddedKafka(security=security, properties=quickly) as broker:
        yield broker


def _password(user: str) -> str:
    return f"password of {user}"


@dataclass
class Guarded(Flow):
    """A flow whose query and commands have their own principal; the test itself is a superuser."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.user = next(_unused)

    @property
    def principal(self) -> str:
        return f"User:{self.user}"

    @property
    def kafka(self) -> dict[str, Any]:
        return {
            **_SETTINGS,
            "bootstrap.servers": self.servers_of(self.broker),
            "sasl.username": self.user,
            "sasl.password": _password(self.user),
        }

    @staticmethod
    def servers_of(broker: EmbeddedKafka) -> str:
        """Bootstrap servers through which the principal reaches a guarded broker."""
        return broker.servers_of(_LISTENER)

    def commands(self, *more: str) -> list[str]:
        """The commands that ``spark-eos acls`` prints for the principal, without comments."""
        names = ["--source", self.source, "--target", self.target, "--group-id", self.group_id]
        return self.commands_for(*names, *more)

    def commands_for(self, *names: str) -> list[str]:
        """The commands that ``spark-eos acls`` prints for another query."""
        where = ["--bootstrap-servers", self.broker.servers_of(_LISTENER)]
        # As in errors: the principal's settings show that the administrator needs a file.
        config = ["--command-config", "FILE"]
        arguments = ["acls", *where, *config, "--principal", self.principal, *names]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        return [line for line in result.stdout.splitlines() if not line.startswith("#")]

    def grant(self, *commands: str) -> None:
        """Creates the ACLs of ``kafka-acls.sh`` command lines."""
        self._put(*(_binding(line) for line in commands))

    def revoke(self, command: str) -> None:
        """Removes the ACL of a ``kafka-acls.sh`` command line."""
        acl = _filter(_binding(command))
        admin = self._admin()
        admin.delete_acls([acl])[acl].result(60)
        until(lambda: not _known(admin, acl), lambda: command)

    @contextmanager
    def without(self, command: str) -> Iterator[None]:
        """Removes the ACL until the block ends."""
        self.revoke(command)
        yield
        self.grant(command)

    def deny_describing(self, transactional_id: str) -> None:
        """Hides one transactional id from the principal, whatever else is allowed."""
        self._put(
            AclBinding(
                ResourceType.TRANSACTIONAL_ID,
                transactional_id,
                ResourcePatternType.LITERAL,
                self.principal,
                "*",
                AclOperation.DESCRIBE,
                AclPermissionType.DENY,
            )
        )

    def _put(self, *acls: AclBinding) -> None:
        admin = self._admin()
        for future in admin.create_acls(list(acls)).values():
            future.result(60)
        until(lambda: all(_known(admin, _filter(acl)) for acl in acls), lambda: f"{acls}")

    def _admin(self) -> AdminClient:
        # Don't cache them: PySpark keeps a query's functions, and so this flow, for longer than the
        # broker runs.
        return admin_client(self.bootstrap_servers)


def _known(admin: AdminClient, acl: AclBindingFilter) -> bool:
    return bool(admin.describe_acls(acl).result(60))


def _filter(acl: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        acl.restype,
        acl.name,
        acl.resource_pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )


def _binding(line: str) -> AclBinding:
    words = shlex.split(line)
    assert words[0] == "kafka-acls.sh"
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--command-config")
    parser.add_argument("--add", action="store_true", required=True)
    parser.add_argument("--allow-principal", required=True)
    parser.add_argument("--operation", required=True)
    parser.add_argument("--resource-pattern-type", default="literal")
    resource = parser.add_mutually_exclusive_group(required=True)
    for option in _RESOURCES:
        resource.add_argument(f"--{option.replace('_', '-')}")
    found = vars(parser.parse_args(words[1:]))
    (option,) = (option for option in _RESOURCES if found[option] is not None)
    return AclBinding(
        _RESOURCES[option],
        found[option],
        ResourcePatternType[found["resource_pattern_type"].upper()],
        found["allow_principal"],
        "*",
        AclOperation[_OPERATIONS[found["operation"]]],
        AclPermissionType.ALLOW,
    )
