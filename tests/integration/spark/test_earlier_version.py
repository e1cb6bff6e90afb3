"""An earlier version's query continues with this one, and back, under load: `make test-upgrade`.

The versions share the checkpoint, the group's offsets with their texts, the progress topic and the
dead letters.
"""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any, Final

import pytest

from spark_eos.verify import Verdict
from support.earlier_main import DIED
from support.flow import Flow
from support.jobs import ROOT
from support.killable_process import KillableProcess
from support.loading import loaded
from support.planting import look
from support.queries import until

pytestmark = [
    pytest.mark.skipif("SPARK_EOS_TURNS" not in os.environ, reason="make test-upgrade runs it"),
    pytest.mark.slow,
    pytest.mark.timeout(3600),
]

# Its texts of offsets and its checkpoints have the same format as today's.
_EARLIER: Final = "933701f"
# Drivers after each other.
_TURNS: Final = int(os.environ.get("SPARK_EOS_TURNS", "0"))
_UNLUCKY: Final = 50
# Spark ends about every second driver that starts beside a running one before its first batch.
_STARTS: Final = 15


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the earlier version."""
    tree = tmp_path_factory.mktemp("earlier")
    git = shutil.which("git") or "git"
    archive = [git, "archive", f"--output={tree}.tar", _EARLIER, "spark_eos"]
    ran = subprocess.run(archive, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"this clone does not have {_EARLIER}: {ran.stderr.strip()}")
    with tarfile.open(f"{tree}.tar") as tar:
        tar.extractall(tree, filter="data")
    return tree


class _Driver(KillableProcess):
    def __init__(self, tree: Path, place: Path, name: str, settings: dict[str, Any]) -> None:
        self.log = place / f"{name}.log"
        path = os.pathsep.join([str(tree), str(ROOT / "tests")])
        super().__init__(
            [sys.executable, "-m", "support.earlier_main", json.dumps(settings)],
            log=self.log,
            # Not one that has a spark_eos, which Python would prefer.
            directory=place,
            environment={
                "PYTHONPATH": path,
                "PYTHONUNBUFFERED": "1",
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        )

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def batches(self) -> list[list[Any]]:
        """The query's id, the batch's number and its rows, for each batch."""
        lines = self.output().splitlines()
        return [json.loads(line[7:]) for line in lines if line.startswith("REPORT ")]

    def writes(self) -> bool:
        """Waits until the query has written two batches or has ended."""
        until(lambda: self._has_written() or self.ended(), self.output, 600)
        return self._has_written()

    def _has_written(self) -> bool:
        return len([rows for _, _, rows in self.batches() if rows]) >= 2

    def ended_by_another(self) -> bool:
        """Return True if it was fenced, or Spark found another driver's batch in the checkpoint."""
        words = ("FencedByNewerRunError", "CONCURRENT_STREAM_LOG_UPDATE")
        return self.exit_status() == 1 and any(word in self.output() for word in words)

    def ended(self) -> bool:
        return self.exit_status() is not None


def _settings(flow: Flow, delivery: str) -> dict[str, Any]:
    dlq = f"dlq-{flow.name}"
    flow.broker.create_topic(dlq, 2)
    return {
        "kafka": flow.kafka,
        "source_kafka": flow.source_kafka,
        "group_id": flow.group_id,
        "topic": flow.target,
        "checkpoint_location": flow.checkpoint,
        "worker_directory": flow.worker_directory,
        "delivery": delivery,
        "progress_topic": f"progress-{flow.name}",
        "dead_letter_topic": dlq,
        "source": flow.source,
        "unlucky": _UNLUCKY,
        "drain": False,
        "dies": False,
    }


def _check_written(flow: Flow, dlq: str, count: int) -> None:
    written = sorted(int(message.key() or b"") for message in flow.written())
    rejected = sorted(int(message.key() or b"") for message in flow.written(dlq))
    assert rejected == list(range(0, count, _UNLUCKY))
    assert sorted(written + rejected) == list(range(count))


@pytest.mark.parametrize("staged_by", ["earlier", "today"])
def test_a_copy_that_the_other_version_has_staged_is_written(
    staged_by: str, earlier: Path, tmp_path: Path, flow: Flow
) -> None:
    settings = {**_settings(flow, "staged"), "drain": True}
    flow.produce(range(200), key=lambda number: b"%d" % number)
    trees = (earlier, ROOT) if staged_by == "earlier" else (ROOT, earlier)
    for tree, dies in zip(trees, (True, False), strict=True):
        driver = _Driver(tree, tmp_path, f"dies-{dies}", {**settings, "dies": dies})
        with driver:
            until(driver.ended, driver.output)
            assert driver.exit_status() == (DIED if dies else 0), driver.output()[-6000:]
        assert len(flow.written()) == (0 if dies else 196)
    _check_written(flow, settings["dead_letter_topic"], 200)


@pytest.mark.parametrize("delivery", ["direct", "mirrored", "staged"])
def test_drivers_of_two_versions_take_over_from_each_other(
    delivery: str, earlier: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    flow: Flow = request.getfixturevalue("mirrored_flow" if delivery == "mirrored" else "flow")
    settings = _settings(flow, delivery)
    dlq = settings["dead_letter_topic"]
    drivers: list[_Driver] = []
    with contextlib.ExitStack() as stack, loaded(flow) as produced:
        for turn in range(_TURNS):
            before = drivers[-1] if drivers else None
            # Half of them is killed; the others run when the next one starts.
            if before is not None and turn % 4 < 2:
                before.kill()
            for attempt in range(_STARTS):
                name = f"driver-{turn}-{attempt}"
                driver = _Driver((earlier, ROOT)[turn % 2], tmp_path, name, settings)
                drivers.append(driver)
                stack.enter_context(driver)
                if driver.writes():
                    break
                # Spark may have ended the newer one; whoever runs it starts it again. The batches
                # of a staged query that runs are ahead of one that starts, which stops.
                assert driver.ended_by_another(), driver.output()[-6000:]
                if before is not None and delivery == "staged":
                    before.kill()
            assert driver.writes()
            if before is not None:
                until(before.ended, before.output, 120)
                ended = turn % 4 < 2 or delivery == "staged" or before.ended_by_another()
                assert ended, before.output()[-6000:]
            time.sleep(random.uniform(0, 3))
        drivers[-1].kill()
    last = _Driver(ROOT, tmp_path, "last", {**settings, "drain": True})
    with last:
        until(last.ended, last.output)
        assert last.exit_status() == 0, last.output()[-6000:]
    found = look(
        flow,
        dead_letter_topics=[dlq],
        key=True,
        # A staged query's offsets do not tell how far it is: all input counts as processed.
        group_id=None if delivery == "staged" else flow.group_id,
        complete=True,
        timeout=30,
    )
    assert found.verdict is Verdict.SOUND, found.anomalies
    _check_written(flow, dlq, produced[0])
    # It is one query, whose batches count on.
    batches = [driver.batches() for driver in (*drivers, last)]
    assert len({query for reported in batches for query, _, _ in reported}) == 1
    firsts = [reported[0][1] for reported in batches if reported]
    assert firsts == sorted(firsts)
    assert firsts[0] < firsts[1]
