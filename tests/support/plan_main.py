"""A process that plans a batch as Spark's do. Standard input: a pickled `Planning`."""

import pickle
import sys
import tempfile
from dataclasses import dataclass

from spark_eos.datasource import keeper_client
from spark_eos.datasource.keeper_client import KeeperClient
from spark_eos.datasource.keeper_messages import Plan
from spark_eos.host.driver_process import HostProcess


@dataclass(frozen=True)
class Planning:
    """What to plan, for which driver, and in which temporary directory."""

    driver: HostProcess
    request: Plan
    temporary: str


def main(planning: Planning) -> None:
    """Says that it is ready, plans when it is told to, and says which batch it has planned."""
    tempfile.tempdir = planning.temporary
    setattr(keeper_client, "spark_driver", lambda: planning.driver)  # noqa: B010 - not exported
    request = planning.request
    client = KeeperClient(request.settings.group_id, request.checkpoint_location, 120)
    print("ready", flush=True)
    sys.stdin.buffer.read(1)
    print(client.plan(request, 60).batch_id)


if __name__ == "__main__":
    # By the name under which it was pickled.
    from support.plan_main import main as run

    run(pickle.load(sys.stdin.buffer))  # noqa: S301 - the test's own
