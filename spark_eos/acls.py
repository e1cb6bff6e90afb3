"""The ACLs that a query and the commands about it need: one list for command, errors and docs.

Kafka's authorizers imply Describe by Read and by Write, so where one of these is needed Describe
is not named as well. Operations and resources are Kafka's (KIP-11, KIP-98, KIP-290 for prefixes).
"""

import enum
import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

_UNKNOWN_PRINCIPAL: Final = "User:PRINCIPAL"


class ResourceType(enum.Enum):
    """What an ACL is about; the value is its option of ``kafka-acls.sh``."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"


class Operation(enum.Enum):
    """What an ACL allows; the value is the name that ``kafka-acls.sh`` takes."""

    READ = "Read"
    WRITE = "Write"
    DESCRIBE = "Describe"


class Purpose(enum.Enum):
    """Who needs ACLs."""

    QUERY = "query"
    STATUS = "status"
    ABORT = "abort"
    VERIFY = "verify"
    DEPRECATED_OFFSET_FETCHING = "deprecated-offset-fetching"


@dataclass(frozen=True)
class Acl:
    """One operation on one resource, or on all whose names begin alike.

    Attributes:
        resource: The type of the resource.
        name: Its name, or what the names begin with.
        operation: What is allowed.
        prefixed: Whether the name is a prefix (KIP-290).
    """

    resource: ResourceType
    name: str
    operation: Operation
    prefixed: bool = False

    def __str__(self) -> str:
        what = self.resource.value.replace("-", " ")
        if self.prefixed:
            return f"{self.operation.value} on {what}s that begin with {self.name!r}"
        return f"{self.operation.value} on {what} {self.name!r}"

    @property
    def pattern_type(self) -> str:
        """How ``kafka-acls.sh`` calls the kind of name."""
        return "prefixed" if self.prefixed else "literal"

    def options(self) -> list[str]:
        """Its part of a command line of ``kafka-acls.sh``."""
        pattern = ["--resource-pattern-type", self.pattern_type] if self.prefixed else []
        operation = ["--operation", self.operation.value]
        return [*operation, *pattern, f"--{self.resource.value}", self.name]


@dataclass(frozen=True)
class Grantee:
    """Whom ACLs are given to, and where.

    Attributes:
        principal: Such as ``User:alice``; None if only the brokers know it.
        bootstrap_servers: The cluster.
        command_config: Properties file with which an administrator connects; None for none.
    """

    principal: str | None
    bootstrap_servers: str
    command_config: str | None = None

    @property
    def who(self) -> str:
        """The principal in words."""
        return self.principal or "the principal of the kafka settings"

    def command(self, acl: Acl) -> str:
        """The line, quoted for a shell, that adds an ACL."""
        config = [] if self.command_config is None else ["--command-config", self.command_config]
        return shlex.join(
            [
                "kafka-acls.sh",
                "--bootstrap-server",
                self.bootstrap_servers,
                *config,
                "--add",
                "--allow-principal",
                self.principal or _UNKNOWN_PRINCIPAL,
                *acl.options(),
            ]
        )

    def lacks(self, missing: Iterable[Acl]) -> str:
        """What is missing, and how to grant it, in words."""
        acls = list(missing)
        what, how = ", ".join(map(str, acls)), "; ".join(map(self.command, acls))
        return f"{self.who} lacks {what}. To grant: {how}"


def read_topic(topic: str) -> Acl:
    """Reading a source topic, and committing its offsets."""
    return Acl(ResourceType.TOPIC, topic, Operation.READ)


def write_topic(topic: str) -> Acl:
    """Writing to a target topic."""
    return Acl(ResourceType.TOPIC, topic, Operation.WRITE)


def read_group(group_id: str) -> Acl:
    """Being a member of the group, and committing offsets for it."""
    return Acl(ResourceType.GROUP, group_id, Operation.READ)


def describe(resource: ResourceType, name: str) -> Acl:
    """Seeing a resource, without more."""
    return Acl(resource, name, Operation.DESCRIBE)


def transactional_ids(beginning: str, operation: Operation) -> Acl:
    """Something with all transactional ids that begin so."""
    return Acl(ResourceType.TRANSACTIONAL_ID, beginning, operation, prefixed=True)


def query_acls(
    group_id: str, id_prefix: str, sources: Collection[str], targets: Collection[str]
) -> list[Acl]:
    """All that a query needs; nothing on the cluster.

    Args:
        group_id: The query's group.
        id_prefix: What its transactional ids begin with.
        sources: Topics that it reads.
        targets: Topics that it writes to.
    """
    return [
        *map(read_topic, sorted(sources)),
        *map(write_topic, sorted(targets)),
        read_group(group_id),
        # Finding, describing and ending open transactions is part of it.
        transactional_ids(id_prefix, Operation.WRITE),
    ]


def acls_for(
    purpose: Purpose,
    group_id: str,
    id_prefix: str,
    sources: Collection[str],
    targets: Collection[str],
) -> list[Acl]:
    """What one purpose needs; the arguments are those of `query_acls`."""
    group = describe(ResourceType.GROUP, group_id)
    if purpose is Purpose.QUERY:
        return query_acls(group_id, id_prefix, sources, targets)
    if purpose in (Purpose.STATUS, Purpose.ABORT):
        # A group is described only to who may describe the topics of its members too.
        topics = [describe(ResourceType.TOPIC, topic) for topic in sorted(sources)]
        operation = Operation.WRITE if purpose is Purpose.ABORT else Operation.DESCRIBE
        return [*topics, group, transactional_ids(id_prefix, operation)]
    if purpose is Purpose.VERIFY:
        read = [read_topic(topic) for topic in sorted({*sources, *targets})]
        return [*read, group, transactional_ids(id_prefix, Operation.DESCRIBE)]
    # Spark's consumers join a group of their own then, with a name that ends at random.
    return [Acl(ResourceType.GROUP, "spark-kafka-source", Operation.READ, prefixed=True)]


def without_implied(acls: Iterable[Acl]) -> list[Acl]:
    """Each ACL once, in order, but no Describe that Read or Write on the same names implies."""
    found = dict.fromkeys(acls)
    return [
        acl
        for acl in found
        if acl.operation is not Operation.DESCRIBE
        or not any(
            Acl(acl.resource, acl.name, other, acl.prefixed) in found
            for other in (Operation.READ, Operation.WRITE)
        )
    ]
