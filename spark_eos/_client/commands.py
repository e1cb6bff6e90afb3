"""Shell commands for a consumer group, which users can copy and paste."""

from typing import NamedTuple

from spark_eos.acls import Principal


class Group(NamedTuple):
    """A consumer group and its cluster."""

    id: str
    cluster: Principal

    def tool(self, *options: str) -> str:
        """Return a ``kafka-consumer-groups.sh`` command for the group."""
        return self.cluster.tool("kafka-consumer-groups.sh", "--group", self.id, *options)

    def own_tool(self, command: str, *options: str) -> str:
        """Return a ``spark-eos`` command for the group."""
        return self.cluster.own_tool(command, "--group-id", self.id, *options)
