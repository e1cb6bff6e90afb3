"""``jobs/relay.py`` on a real YARN; its containers have only what docs/deploying.md ships."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from support.flow import Flow
from support.hadoop import Hadoop
from support.jobs import ROOT
from support.killable_process import KillableProcess
from support.queries import slot_holders, until
from support.shipping import CLUSTER_MODE, SHIPPED, make_bare_python, pack

T = TypeVar("T")
# On a busy machine, YARN alone takes minutes to start two containers.
_PATIENCE: Final = 600.0


@dataclass
class Job:
    """A submitted job."""

    flow: Flow
    hadoop: Hadoop
    process: KillableProcess
    log: Path

    def until(self, condition: Callable[[], T], what: str) -> T:
        """Waits for a condition while the job runs."""

        def checked() -> T:
            found = condition()
            assert found or self.process.exit_status() is None, self.timeout_message(what)
            return found

        found: T = until(checked, lambda: self.timeout_message(what), _PATIENCE)
        return found

    def succeeds(self) -> None:
        """Waits for the job's end."""

        def ended() -> bool:
            return self.process.exit_status() is not None

        until(ended, lambda: self.timeout_message("its end"), _PATIENCE)
        assert self.process.exit_status() == 0, self.timeout_message("its end")

    def writer(self) -> tuple[int, Path]:
        """Waits for an open transaction; returns its worker and the worker's container."""

        def found() -> tuple[int, Path] | None:
            holders = slot_holders(self.flow.worker_directory)
            for transactional_id in self.flow.ongoing_transactions():
                lock = f"/slot-{transactional_id.rpartition('/')[2]}.lock"
                for worker in (pid for path, pid in holders.items() if path.endswith(lock)):
                    if (container := self.hadoop.containers().get(worker)) is not None:
                        return worker, container
            return None

        writer = self.until(found, "an open transaction")
        assert writer is not None
        return writer

    def until_gone(self, pids: Iterable[int] | None = None) -> None:
        """Waits until processes in containers have ended; all if none are given."""

        def gone() -> bool:
            left = self.hadoop.containers().keys()
            return not (left if pids is None else left & set(pids))

        until(gone, lambda: self.timeout_message("the end of processes"))

    def text(self) -> str:
        """The logs of the job and its containers."""
        text = self.log.read_text(errors="replace")
        submitted = re.search(r"Submitted application (application_\w+)", text)
        return text + (self.hadoop.logs(submitted[1]) if submitted else "")

    def timeout_message(self, what: str) -> str:
        """The message if waiting for something has timed out."""
        ends = [text[-6_000:] for text in self.text().split("\n--- ")]
        return "\n--- ".join([what, *ends])


@dataclass
class Yarn:
    """A YARN, and a directory with an archive of packages for its containers."""

    hadoop: Hadoop
    packages: Path
    python: str  # a Python without packages

    @contextmanager
    def relay(
        self,
        flow: Flow,
        mode: str,
        *,
        log: Path,
        config: dict[str, str] | None = None,
        arguments: tuple[str, ...] = ("--available-now",),
    ) -> Iterator[Job]:
        """Submits the job with its checkpoint on HDFS; by default it ends when all is written."""
        settings = [word for pair in (config or {}).items() for word in ("--conf", "=".join(pair))]
        in_cluster = mode == "cluster"
        driver = {} if in_cluster else {"PYSPARK_DRIVER_PYTHON": sys.executable}
        with self.hadoop.submit(
            ROOT / "jobs" / "relay.py",
            *("--bootstrap-servers", flow.bootstrap_servers, "--group-id", flow.group_id),
            *("--source", flow.source, "--target", flow.target),
            *("--checkpoint-location", f"checkpoints/{flow.name}"),
            *("--worker-directory", flow.worker_directory, *arguments),
            options=[
                *("--deploy-mode", mode, *SHIPPED, *(CLUSTER_MODE if in_cluster else ())),
                *settings,
            ],
            directory=self.packages,
            log=log,
            environment={"PYSPARK_PYTHON": self.python, **driver},
        ) as process:
            job = Job(flow, self.hadoop, process, log)
            yield job
        # Otherwise, the next job would take these containers for its own.
        job.until_gone()


@contextmanager
def yarn_with_packages(place: Path) -> Iterator[Yarn]:
    """Starts YARN, and creates the archive that it ships."""
    packages, hadoop = place / "packages", place / "hadoop"
    packages.mkdir()
    hadoop.mkdir()
    pack(packages)
    with Hadoop(hadoop, yarn=True) as found:
        yield Yarn(found, packages, make_bare_python(place / "bare"))
