"""The ACLs that a query and its commands need: a single list for the command, errors and docs.

In Kafka's authorizers, Read and Write imply Describe, so Describe is not listed separately.
Operations and resources are Kafka's (KIP-11, KIP-98, and KIP-290 for prefixes).
"""

import enum
import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

_UNKNOWN_PRINCIPAL: Final = "User:PRINCIPAL"


class ResourceType(enum.Enum):
    """The resource type of an ACL; the value is the matching option of ``kafka-acls.sh``."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"


class Operation(enum.Enum):
    """The operation that an ACL allows; the value is its name in ``kafka-acls.sh``."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"


class Purpose(enum.Enum):
    """The purpose for which ACLs are needed."""

    QUERY = "query"
    STATUS = "status"
    ABORT = "abort"
    VERIFY = "verify"
    DEPRECATED_OFFSET_FETCHING = "deprecated-offset-fetching"


@dataclass(frozen=True)
class Acl:
    """One operation on one resource, or on all resources with a common prefix.

    Attributes:
        resource: Type of the resource.
        name: Name of the resource, or the prefix of the names.
        operation: The allowed operation.
        prefixed: Whether the name is a prefix (KIP-290).

    Example:
        >>> acl = Acl(ResourceType.TRANSACTIONAL_ID, "eos/", Operation.WRITE, prefixed=True)
        >>> print(acl)
        Write on transactional ids that begin with 'eos/'
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
    def only_until(self) -> str | None:
        """The event until which the ACL is needed; None if it is always needed.

        Example:
            >>> Acl(ResourceType.TOPIC, "progress", Operation.CREATE).only_until
            'the topic exists'
        """
        if self.operation is Operation.CREATE:
            return f"the {self.resource.value} exists"
        if self.operation is Operation.ALTER:
            return f"the {self.resource.value} has a partition for each source partition"
        return None

    @property
    def pattern_type(self) -> str:
        """The name of the pattern type in ``kafka-acls.sh``."""
        return "prefixed" if self.prefixed else "literal"

    def options(self) -> list[str]:
        """Return the options of ``kafka-acls.sh`` for this ACL."""
        pattern = ["--resource-pattern-type", self.pattern_type] if self.prefixed else []
        operation = ["--operation", self.operation.value]
        return [*operation, *pattern, f"--{self.resource.value}", self.name]


@dataclass(frozen=True)
class Principal:
    """The principal that needs ACLs, and its cluster.

    Attributes:
        principal: The principal, such as ``User:alice``; None if only the brokers know it.
        bootstrap_servers: The ``bootstrap.servers`` of the cluster.
        command_config: The administrator's properties file for Kafka's tools, if the cluster needs
            one; ``FILE`` stands for a file that only the administrator knows.

    Example:
        >>> Principal("User:alice", "localhost:9092").command(read_topic("orders"))
        'kafka-acls.sh --bootstrap-server localhost:9092 --add --allow-principal User:alice \
--operation Read --topic orders'
    """

    principal: str | None
    bootstrap_servers: str
    command_config: str | None = None

    @property
    def who(self) -> str:
        """The principal, or a description of an unknown one, for messages."""
        return self.principal or "the principal of the kafka settings"

    def command(self, acl: Acl) -> str:
        """Return the command that adds an ACL, quoted for a shell."""
        who = self.principal or _UNKNOWN_PRINCIPAL
        return self.tool("kafka-acls.sh", "--add", "--allow-principal", who, *acl.options())

    def tool(self, name: str, *options: str) -> str:
        """Return the command line of one of Kafka's tools for the cluster, quoted for a shell."""
        config = [] if self.command_config is None else ["--command-config", self.command_config]
        servers = ["--bootstrap-server", self.bootstrap_servers]
        return shlex.join([name, *servers, *config, *options])

    def own_tool(self, command: str, *options: str) -> str:
        """Return a ``spark-eos`` command for the cluster, quoted for a shell."""
        servers = ["--bootstrap-servers", self.bootstrap_servers]
        # spark-eos reads a file of librdkafka's settings, not Java's, so the administrator's file
        # does not fit.
        config = [] if self.command_config is None else ["--kafka-config", "FILE"]
        return shlex.join(["spark-eos", command, *servers, *config, *options])

    def lacks(self, missing: Iterable[Acl]) -> str:
        """Return text that names the missing ACLs and the commands that grant them."""
        acls = list(missing)
        what, how = ", ".join(map(str, acls)), "; ".join(map(self.command, acls))
        return f"{self.who} lacks {what}. To grant: {how}"


def read_topic(topic: str) -> Acl:
    """Return the ACL for reading a source topic and committing its offsets."""
    return Acl(ResourceType.TOPIC, topic, Operation.READ)


def write_topic(topic: str) -> Acl:
    """Return the ACL for writing to a target topic."""
    return Acl(ResourceType.TOPIC, topic, Operation.WRITE)


def describe_configs(topic: str) -> Acl:
    """Return the ACL for finding out which records a topic accepts and whether it is compacted."""
    return Acl(ResourceType.TOPIC, topic, Operation.DESCRIBE_CONFIGS)


def create_topic(topic: str) -> Acl:
    """Return the ACL for creating a topic, which is not needed once the topic exists."""
    return Acl(ResourceType.TOPIC, topic, Operation.CREATE)


def read_group(group_id: str) -> Acl:
    """Return the ACL for joining the group and committing its offsets."""
    return Acl(ResourceType.GROUP, group_id, Operation.READ)


def describe(resource: ResourceType, name: str) -> Acl:
    """Return the ACL for describing a resource."""
    return Acl(resource, name, Operation.DESCRIBE)


def transactional_ids(prefix: str, operation: Operation) -> Acl:
    """Return the ACL for an operation on all transactional ids with a prefix."""
    return Acl(ResourceType.TRANSACTIONAL_ID, prefix, operation, prefixed=True)


# With deprecated fetching, Spark's consumers join groups whose names have random endings.
_SPARKS_GROUPS: Final = Acl(ResourceType.GROUP, "spark-kafka-source", Operation.READ, prefixed=True)


def query_acls(
    group_id: str, id_prefix: str, sources: Collection[str], targets: Collection[str]
) -> list[Acl]:
    """List the ACLs that a query needs; none of them is for the cluster resource.

    Args:
        group_id: The query's group.
        id_prefix: Prefix of the query's transactional ids.
        sources: Names of the source topics.
        targets: Names of the target topics.

    Example:
        >>> for acl in query_acls("g", "spark-eos/g/", ["orders"], ["enriched"]):
        ...     print(acl)
        Read on topic 'orders'
        Write on topic 'enriched'
        Read on group 'g'
        Write on transactional ids that begin with 'spark-eos/g/'
    """
    return [
        *map(read_topic, sorted(sources)),
        *map(write_topic, sorted(targets)),
        read_group(group_id),
        # This ACL also allows finding, describing and ending open transactions.
        transactional_ids(id_prefix, Operation.WRITE),
    ]


def acls_for(
    purpose: Purpose,
    group_id: str,
    id_prefix: str,
    sources: Collection[str],
    targets: Collection[str],
    progress_topic: str | None = None,
    dead_letter_topic: str | None = None,
    *,
    mirrored: bool = False,
) -> list[Acl]:
    """List the ACLs that are needed for a purpose in the target's cluster.

    Args:
        purpose: The purpose of the ACLs.
        group_id: The query's group.
        id_prefix: Prefix of the query's transactional ids.
        sources: Names of the source topics.
        targets: Names of the target topics.
        progress_topic: Name of the progress topic of a staged or mirrored query.
        dead_letter_topic: Name of the query's dead-letter topic, if it has one.
        mirrored: Whether the sources are in another cluster: see `source_acls`.

    Example:
        >>> needed = acls_for(Purpose.QUERY, "g", "spark-eos/g/", ["in"], ["out"], "progress")
        >>> [str(acl) for acl in needed if acl.only_until]
        ["Create on topic 'progress'"]
    """
    group = describe(ResourceType.GROUP, group_id)
    sources = () if mirrored else sources
    dead_letter_topics = [] if dead_letter_topic is None else [dead_letter_topic]
    targets = {*targets, *dead_letter_topics}
    # The group subscribes to the progress topic as well as to the sources.
    subscribed = {*sources, *([] if progress_topic is None else [progress_topic])}
    if purpose is Purpose.QUERY:
        create = [] if progress_topic is None else [create_topic(progress_topic)]
        if mirrored and progress_topic is not None:
            create.append(Acl(ResourceType.TOPIC, progress_topic, Operation.ALTER))
        configs = map(describe_configs, sorted(targets))
        return [*query_acls(group_id, id_prefix, subscribed, targets), *configs, *create]
    if purpose in (Purpose.STATUS, Purpose.ABORT):
        # Describing a group requires the right to describe its members' topics as well.
        topics = [describe(ResourceType.TOPIC, topic) for topic in sorted(subscribed)]
        operation = Operation.WRITE if purpose is Purpose.ABORT else Operation.DESCRIBE
        return [*topics, group, transactional_ids(id_prefix, operation)]
    if purpose is Purpose.VERIFY:
        named = sorted({*sources, *targets})
        read = [read_topic(topic) for topic in named]
        if mirrored and progress_topic is not None:
            # The group's offsets in the progress topic show how far inputs have been processed.
            read.append(describe(ResourceType.TOPIC, progress_topic))
        ids = transactional_ids(id_prefix, Operation.DESCRIBE)
        return [*read, group, ids, *map(describe_configs, named)]
    return [] if mirrored else [_SPARKS_GROUPS]


def source_acls(purpose: Purpose, sources: Iterable[str]) -> list[Acl]:
    """List the ACLs that are needed for a purpose in a mirrored query's source cluster.

    Args:
        purpose: The purpose of the ACLs.
        sources: Names of the source topics.

    Example:
        >>> [str(acl) for acl in source_acls(Purpose.QUERY, ["in"])]
        ["Read on topic 'in'"]
    """
    topics = sorted(set(sources))
    if purpose in (Purpose.QUERY, Purpose.VERIFY):
        configs = topics if purpose is Purpose.VERIFY else ()
        return [*map(read_topic, topics), *map(describe_configs, configs)]
    if purpose is Purpose.STATUS:
        return [describe(ResourceType.TOPIC, topic) for topic in topics]
    return [_SPARKS_GROUPS] if purpose is Purpose.DEPRECATED_OFFSET_FETCHING else []


def without_implied(acls: Iterable[Acl]) -> list[Acl]:
    """Remove duplicates, and each Describe that Read or Write on the same name implies."""
    unique = dict.fromkeys(acls)
    return [
        acl
        for acl in unique
        if acl.operation is not Operation.DESCRIBE
        or not any(
            Acl(acl.resource, acl.name, other, acl.prefixed) in unique
            for other in (Operation.READ, Operation.WRITE)
        )
    ]
