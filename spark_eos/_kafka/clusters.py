"""The clusters of a query, each with one set of connections."""

from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections


class Clusters:
    """Connections to the clusters that a query uses."""

    def __init__(self, target: ClientSettings, source: ClientSettings | None = None) -> None:
        self.target = Connections(target)
        self.source = self.target if source is None else Connections(source)

    def close(self) -> None:
        """Closes all connections."""
        self.source.close()
        self.target.close()
