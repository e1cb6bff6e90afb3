"""One or two brokers behind proxies, a query in its own processes, and observers of all of them.

The harness connects to the brokers directly, so network faults don't affect it.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from chaos.every_load import EVERY_LOAD
from chaos.invariants import Rule, Violation
from chaos.loads import MAX_BYTES, Source, ask_nothing_more
from chaos.order import OrderCheck
from chaos.processes import Driver
from chaos.schedule import Schedule
from chaos.staged_files import StagedFiles
from chaos.traces import Trace
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.cluster import topics
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.offset_metadata import CommittedOffset, KnownPartitions
from spark_eos._kafka.offsets import all_group_offsets
from spark_eos._kafka.open_transactions import lingering_transactions
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import SparkEosError
from spark_eos.testing import EmbeddedSchemaRegistry
from support.groups import positions
from support.hadoop import Hadoop
from support.linked_nodes import LinkedKafka
from support.proxy import KafkaProxy

TRANSACTION_TIMEOUT_MS = 12_000
SESSION_TIMEOUT_MS = 5_000
# Seconds after a transaction's timeout.
_ABORTED_WITHIN = 20.0
_IN_SYNC_WITHIN = 120.0
# Seconds without progress after which the watcher connects to other nodes.
_ASKED_AGAIN = 5.0
# The harness restarts queries itself, so YARN must not.
_ON_YARN = {"spark.yarn.maxAppAttempts": "1"}
_TESTS = Path(__file__).parents[1]


class TrialError(Exception):
    """The query does not recover, or ends for a reason that no fault explains."""


class NotInflictedError(Exception):
    """A fault found no occasion."""


def wait_for(condition: Callable[[], object], end: float, problem: str) -> None:
    while not condition():
        if time.monotonic() > end:
            raise TrialError(problem)
        time.sleep(0.02)


class Stage:
    """Everything that a trial needs; a context manager."""

    def __init__(
        self,
        plan: Schedule,
        directory: Path,
        project: Path | None,
        transaction_timeout_ms: int,
    ) -> None:
        self.plan = plan
        self.transaction_timeout_ms = transaction_timeout_ms
        self.directory = directory
        self.load = EVERY_LOAD[plan.load]
        self.name = f"chaos-{plan.seed}"
        self.sources = [f"in-{self.name}-{n}" for n in range(self.load.sources)]
        self.targets = [f"out-{self.name}-{n}" for n in range(self.load.targets)]
        self.dead_letter_topics = [f"dlq-{self.name}"] if self.load.dead_letters else []
        self.partitions = self.load.partitions
        self.checkpoint = directory / "checkpoint"
        self.progress_topic = f"progress-{self.name}"
        self.staged = StagedFiles(self.checkpoint) if plan.front == "staged" else None
        self.control = directory / "control"
        self.starts = 0
        self.registry: EmbeddedSchemaRegistry | None = None
        self.hadoop: Hadoop | None = None
        self.proxy = KafkaProxy(nodes=plan.nodes, record=False)
        self.order = OrderCheck()
        self.trace = Trace()
        self.proxy.observers = (self.order, self.trace)
        # For a mirrored query, the cluster that it reads.
        self.source_proxy = (
            KafkaProxy(nodes=plan.nodes, record=False) if plan.front == "mirrored" else self.proxy
        )
        self._project = project
        self._stack = ExitStack()
        self._others: list[Driver] = []

    def __enter__(self) -> "Stage":
        self.control.mkdir()
        try:
            self.broker = self.source_broker = self._new_broker(self.proxy)
            if self.source_proxy is not self.proxy:
                self.source_broker = self._new_broker(self.source_proxy)
            for topic in self.sources:
                self.source_broker.create_topic(topic, self.partitions)
            for topic in (*self.targets, *self.dead_letter_topics):
                largest = self.largest_message(topic)
                config = {} if largest is None else {"max.message.bytes": str(largest)}
                self.broker.create_topic(topic, self.partitions, config)
            self.servers = self.broker.direct_servers
            self.source_servers = self.source_broker.direct_servers
            self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
            self.source_admin = self.admin
            if self.mirrored:
                self.source_admin = AdminClient(
                    {"bootstrap.servers": self.source_servers, "log_level": 0}
                )
            self.connections = self.connect()
            self._stack.callback(self.connections.close)
            if self.plan.yarn:
                place = self.directory / "hadoop"
                place.mkdir()
                # There may be a second driver beside the first.
                self.hadoop = self._stack.enter_context(Hadoop(place, yarn=True, applications=2))
            if self.load.of_registry is not None:
                self.registry = self._stack.enter_context(EmbeddedSchemaRegistry())
                made = self.load.of_registry(self.registry.url)
                self.load = replace(self.load, record=made)
            self.source = Source(self.load, self.sources, self.source_servers, self.plan.seed)
            self.top_up()
            self.watcher = _Watcher(self)
            self._stack.callback(self.watcher.stop)
        except BaseException:
            self._stack.close()
            raise
        return self

    def connect(self) -> Connections:
        """Connections to the nodes that are not cut off from the others."""
        servers = ",".join(node.direct_servers for node in self.broker.together)
        # Not librdkafka's admin client, which can crash if used while its broker is away.
        return Connections(ClientSettings({"bootstrap.servers": servers}), request_timeout=1.0)

    @property
    def mirrored(self) -> bool:
        return self.plan.front == "mirrored"

    def largest_message(self, topic: str) -> int | None:
        """A topic's size limit; None for the brokers' default."""
        return MAX_BYTES if self.load.small and topic == self.targets[-1] else None

    def _new_broker(self, proxy: KafkaProxy) -> LinkedKafka:
        self._stack.enter_context(proxy)
        broker = LinkedKafka(
            nodes=self.plan.nodes,
            advertised_port=proxy.ports,
            heap="768m",
            properties={
                "group.consumer.session.timeout.ms": str(SESSION_TIMEOUT_MS),
                "group.consumer.heartbeat.interval.ms": "500",
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
            },
        )
        self._stack.enter_context(broker)
        proxy.connect(broker)
        return broker

    def heal(self) -> None:
        """Restarts missing nodes, and waits until they have caught up."""
        self.proxy.cut_off = frozenset()
        self.broker.join()
        for node in self.broker.nodes:
            if node.is_running:
                node.resume()
        if not self.broker.is_running:
            self.broker.start()
        self.broker.wait_until_in_sync(_IN_SYNC_WITHIN)

    def __exit__(self, *_: object) -> None:
        self._kill_all()
        self._stack.close()

    # The query --------------------------------------------------------------------------------

    def _settings(self, checkpoint: Path, log: Path, *, drain: bool) -> dict[str, Any]:
        config = {
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(self.load.arrow_rows),
            # Zombies of a stopped query live long enough to do harm.
            "spark.python.task.killTimeout": "6s",
            **({} if self.hadoop is None else {**self.hadoop.settings, **_ON_YARN}),
        }
        if self.plan.speculation:
            config |= {
                "spark.speculation": "true",
                "spark.speculation.interval": "100ms",
                "spark.speculation.multiplier": "1.1",
                "spark.speculation.quantile": "0.5",
                "spark.speculation.minTaskRuntime": "100ms",
            }
        asynchronous = self.plan.asynchronous(self.starts)
        sink = {
            "kafka": {"bootstrap.servers": self.proxy.bootstrap_servers},
            "group_id": self.name,
            # A URI also works if Hadoop's default is another file system.
            "checkpoint_location": checkpoint.as_uri(),
            # Every other restart is as on another host: no worker can take the previous run's
            # transactional ids.
            "worker_directory": str(self.directory / f"workers-{self.starts // 2 % 2}"),
            "transaction_timeout_ms": self.transaction_timeout_ms,
            "max_transaction_ms": 3_000,
        }
        if self.dead_letter_topics:
            sink["dead_letter_topic"] = self.dead_letter_topics[0]
        if asynchronous:  # other fronts lack this option
            sink["asynchronous_progress"] = True
        if self.mirrored or self.staged is not None:
            sink["progress_topic"] = self.progress_topic
        if self.mirrored:
            sink["source_kafka"] = {"bootstrap.servers": self.source_proxy.bootstrap_servers}
        return {
            "load": self.plan.load,
            "front": self.plan.front,
            "control": str(self.control),
            "master": self._master,
            "config": config,
            "sources": self.sources,
            "targets": self.targets,
            # Many batches must end before Spark logs one.
            "max_offsets": self.load.max_offsets // (20 if asynchronous and not drain else 1),
            "drain": drain,
            "schemas": self.schemas(checkpoint),
            "reports": str(log.with_suffix(".reports")),
            "sink": sink,
        }

    def schemas(self, checkpoint: Path) -> dict[str, str]:
        """Further arguments of a load's functions: the registry, and a directory for pins."""
        if self.registry is None:
            return {}
        return {"registry": self.registry.url, "pinned": checkpoint.as_uri()}

    @property
    def _master(self) -> str:
        if self.plan.yarn:
            return "yarn"
        return "local-cluster[2,1,1024]" if self.plan.cluster else "local[2,3]"

    def _launch(self, checkpoint: Path, name: str, *, drain: bool = False) -> Driver:
        log = self.directory / f"{name}.log"
        settings = self._settings(checkpoint, log, drain=drain)
        paths = [str(p) for p in (self._project, _TESTS, os.environ.get("PYTHONPATH")) if p]
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "chaos.query", json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(paths),
                    "PYTHONUNBUFFERED": "1",
                    "TMPDIR": str(self.directory),
                    **({} if self.hadoop is None else self.hadoop.environment),
                },
            )

        return Driver(process, log)

    def start(self, *, drain: bool = False) -> None:
        self.starts += 1
        self.query = self._launch(self.checkpoint, f"query-{self.starts}", drain=drain)

    def start_another(self) -> Driver:
        """Starts a second driver with the same group.

        A staged query's second driver shares the checkpoint; others have their own.
        """
        # Requests are for the first driver's tasks only.
        ask_nothing_more(self.control)
        number = len(self._others)
        aside = self.directory / f"checkpoint-of-another-{number}"
        checkpoint = aside if self.staged is None else self.checkpoint
        self._others.append(self._launch(checkpoint, f"another-{number}"))
        return self._others[-1]

    def _kill_all(self) -> None:
        for driver in (*([self.query] if self.starts else []), *self._others):
            driver.kill()

    def end(self) -> None:
        """Ends all queries, and waits until the brokers have aborted their open transactions."""
        self.watcher.stop_feeding()
        self._kill_all()
        self.heal()
        end = time.monotonic() + self.transaction_timeout_ms / 1000 + _ABORTED_WITHIN
        while time.monotonic() < end and self.abandoned(time.time()):
            time.sleep(0.2)

    def keep_going(self) -> None:
        """Restarts the query if it has ended, as its operator would."""
        if self.query.exit_status() is not None:
            self.query.kill()
            self.start()

    # Input and progress -----------------------------------------------------------------------

    def top_up(self) -> None:
        self.source.top_up(self.partitions)

    def committed(self) -> Mapping[TopicPartition, int] | None:
        """The group's committed offsets; None while the broker does not return them."""
        found = self.group_offsets()
        return None if found is None else positions(found)

    def group_offsets(
        self, connections: Connections | None = None
    ) -> Mapping[TopicPartition, CommittedOffset] | None:
        """The committed offsets with their texts."""
        asked = connections or self.connections
        try:
            return all_group_offsets(asked, self.name, Deadline(1.0, "harness"))
        except SparkEosError:
            return None

    def topic_names(self) -> dict[str, str]:
        """Names of the topics for which the group has offsets, by topic id, as in requests."""
        names = [*self.sources, self.progress_topic]
        found = topics(self.connections, names, Deadline(20, "harness"))
        return {str(topic.topic_id): name for name, topic in found.items()}

    def pairs(self) -> dict[TopicPartition, TopicPartition]:
        """For a mirrored query: the source partitions that progress partitions represent."""
        committed = all_group_offsets(self.connections, self.name, Deadline(20, "harness"))
        known = KnownPartitions.of(committed).sources
        return {partition: source.topic_partition for partition, source in known.items()}

    def processed(self) -> int:
        """The number of input records that the query has finished."""
        return self.watcher.total if self.staged is None else self.staged.records_processed()

    def abandoned(self, since: float) -> list[str]:
        """Transactional ids whose open transactions began before a time, in seconds since 1970."""
        found = lingering_transactions(
            self.connections, "spark-eos", self.name, Deadline(10, "harness")
        )
        return [t.transactional_id for t in found if (t.started_ms or 0) < since * 1000]


@dataclass(frozen=True)
class _Reading:
    asked: float
    seen: float
    total: int


class _Watcher:
    """Watches the committed offsets all the time, and keeps the input ahead of the query."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._readings = [_Reading(0.0, time.monotonic(), 0)]
        self._stopped = threading.Event()
        self._fed = True
        self._feeding = threading.Lock()
        self._failure: Exception | None = None
        self.violations: list[Violation] = []
        self._furthest: dict[TopicPartition, int] = {}
        self._may_go_back = False
        self._threads = [
            threading.Thread(target=self._work, args=(work,), name=work.__name__, daemon=True)
            for work in (self._watch, self._feed)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised by `next_commit`
            self._failure = error

    def _watch(self) -> None:
        connections, since = self._stage.connect(), time.monotonic()
        try:
            while not self._stopped.wait(0.03):
                if self._look(connections):
                    since = time.monotonic()
                elif self._stage.plan.nodes > 1 and time.monotonic() - since > _ASKED_AGAIN:
                    # A partitioned node returns old offsets forever.
                    connections.close()
                    connections, since = self._stage.connect(), time.monotonic()
        finally:
            connections.close()

    def _look(self, connections: Connections) -> bool:
        """True if offsets have moved."""
        asked, before = time.monotonic(), self.total
        known = self._stage.group_offsets(connections)
        if known is None:
            return False
        found = positions(known)
        # A node that has just become coordinator, or does not know yet that it no longer is, may
        # return old offsets. With several nodes, `lockstep` judges by the logs instead.
        if self._stage.plan.nodes == 1:
            self._compare(found)
            self._look_for_copy(known)
        # Offsets that were deleted and restored are no progress.
        total = max(before, sum(found.values()))
        self._readings.append(_Reading(asked, time.monotonic(), total))
        return total > before

    def _compare(self, found: Mapping[TopicPartition, int]) -> None:
        if self._may_go_back:
            self._furthest.clear()
            return
        for partition, offset in found.items():
            before = self._furthest.get(partition, offset)
            if offset < before and not self.violations:
                detail = f"{partition} from {before} to {offset}"
                self.violations.append(Violation(Rule.OFFSETS_FORWARD, detail))
            self._furthest[partition] = max(before, offset)

    def _look_for_copy(self, known: Mapping[TopicPartition, CommittedOffset]) -> None:
        staged = self._stage.staged
        if staged is None or self._may_go_back or self.violations:
            return
        for name in staged.missing_copies(known):
            # The next batch may have been staged in the meantime.
            again = self._stage.group_offsets()
            if again is not None and name in staged.missing_copies(again):
                self.violations.append(Violation(Rule.COPY_KEPT, f"{name} has no files"))

    @contextmanager
    def offsets_may_go_back(self) -> Iterator[None]:
        """Allows lower offsets while the harness deletes and restores offsets or the checkpoint."""
        self._may_go_back = True
        try:
            yield
        finally:
            self._may_go_back = False

    def _feed(self) -> None:
        stage = self._stage
        while not self._stopped.wait(0.1):
            with self._feeding:
                low = stage.source.produced - stage.processed() < stage.load.top_up // 2
                if self._fed and low:
                    with suppress(TimeoutError):
                        stage.top_up()

    @property
    def total(self) -> int:
        """The greatest sum of committed offsets so far."""
        return self._readings[-1].total

    def last_readings(self) -> list[dict[str, float]]:
        """The latest sums of committed offsets, with when they were asked for and first seen."""
        return [asdict(reading) for reading in self._readings[-5:]]

    def stop_feeding(self) -> None:
        """Stops producing; returns when everything being produced has been written."""
        with self._feeding:
            self._fed = False

    def next_commit(self, after: float) -> float | None:
        """The time at which offsets were first seen to advance after a time, or None.

        Offsets that were committed before, but seen only afterwards, do not count.
        """
        if self._failure is not None:
            raise self._failure
        since = [reading for reading in list(self._readings) if reading.asked > after]
        return next((r.seen for r in since if r.total > since[0].total), None)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(130)
