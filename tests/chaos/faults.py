"""Inflicts a schedule's faults on a running query."""

import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from chaos import loads, node_faults, processes, staged_faults
from chaos.invariants import Rule, ViolationError
from chaos.moments import AN_OCCASION, held
from chaos.schedule import NO_MAJORITY, TAKE_OVER, Fault, Kind, Moment
from chaos.second_drivers import frozen_query, two_drivers
from chaos.stage import SESSION_TIMEOUT_MS, NotInflictedError, Stage, TrialError, wait_for
from spark_eos._kafka.offset_metadata import CommittedOffset
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.testing import EmbeddedKafka
from support import groups
from support.late_offsets import LateOffsets
from support.proxy import KafkaProxy, everybody

# A start on Spark Connect may take more than a minute if many processes share two cores.
_PATIENCE = 240.0
_MOST_PARTITIONS = 7


def inflict(stage: Stage, fault: Fault) -> None:
    """Inflicts a fault; returns when it is over and paused processes and brokers run again."""
    deed = (_DEEDS if stage.staged is None else _STAGED_DEEDS)[fault.kind]
    if fault.kind is Kind.ASYNCHRONOUS_KILL:
        _await_batches(stage, fault)
    _at_its_moment(deed, stage, fault)
    if fault.kind in NO_MAJORITY:
        time.sleep(2 * fault.seconds)
        stage.heal()


def _at_its_moment(deed: Callable[[Stage, Fault], None], stage: Stage, fault: Fault) -> None:
    if fault.at is None:
        deed(stage, fault)
    elif fault.at in TAKE_OVER:
        # Kill the query within a transaction, so that the next start has one to end.
        with held(stage.proxy, Moment.PRODUCED):
            stage.query.kill()
        with held(stage.proxy, fault.at, seconds=_PATIENCE, meanwhile=stage.keep_going) as (_, id_):
            deed(stage, replace(fault, transactional_id=id_))
    else:
        with held(stage.proxy, fault.at, skip=int(fault.choice * 10) % 5) as (sender, id_):
            deed(stage, replace(fault, sender=sender, transactional_id=id_))


def _one(pids: list[int], fault: Fault) -> list[int]:
    """Returns one of the processes; if the fault has a moment, the process that has reached it."""
    if not pids:
        raise NotInflictedError("there is no such process now")
    sender = fault.sender
    own = [pid for pid in pids if sender and sender in (pid, *processes.children(pid))]
    return own[:1] or [pids[int(fault.choice * len(pids))]]


def _paused(pids: list[int], seconds: float) -> None:
    processes.send(pids, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        processes.send(pids, signal.SIGCONT)


def _killing(find: Callable[[int], list[int]]) -> Callable[[Stage, Fault], None]:
    def kill(stage: Stage, fault: Fault) -> None:
        chosen = _one(find(stage.query.pid), fault)
        processes.send(chosen, signal.SIGKILL)
        wait_for(
            lambda: not any(map(processes.command, chosen)),
            time.monotonic() + _PATIENCE,
            f"{chosen} lives on although it was killed",
        )

    return kill


def _pausing(find: Callable[[int], list[int]]) -> Callable[[Stage, Fault], None]:
    def pause(stage: Stage, fault: Fault) -> None:
        _paused(_one(find(stage.query.pid), fault), fault.seconds)

    return pause


def _driver(driver: int) -> list[int]:
    return [driver]


def _query_kill(stage: Stage, _fault: Fault) -> None:
    """Like the loss of a host: workers die too, so nothing ends their transactions."""
    stage.query.kill()


def _await_batches(stage: Stage, fault: Fault) -> None:
    """Waits for several batches, of which Spark has logged only the first."""
    batches = 2 + int(fault.choice * 4)
    wait_for(
        lambda: stage.query.reports() >= batches or stage.query.exit_status() is not None,
        time.monotonic() + _PATIENCE,
        f"the query does not get {batches} batches done: {stage.query.log}",
    )


def _session_expiry(stage: Stage, fault: Fault) -> None:
    pids = [stage.query.pid, *processes.holders_of(stage.query.pid)]
    _paused(pids, SESSION_TIMEOUT_MS / 1000 + fault.seconds)


def _target(stage: Stage) -> tuple[EmbeddedKafka, KafkaProxy]:
    return stage.broker, stage.proxy


def _source(stage: Stage) -> tuple[EmbeddedKafka, KafkaProxy]:
    return stage.source_broker, stage.source_proxy


_Cluster = Callable[[Stage], tuple[EmbeddedKafka, KafkaProxy]]


def _broker_away(
    end: Callable[[EmbeddedKafka], None], of: _Cluster = _target
) -> Callable[[Stage, Fault], None]:
    def away(stage: Stage, fault: Fault) -> None:
        broker, _ = of(stage)
        end(broker)
        time.sleep(fault.seconds / 2)
        broker.start()

    return away


def _broker_paused(of: _Cluster = _target) -> Callable[[Stage, Fault], None]:
    def pause(stage: Stage, fault: Fault) -> None:
        broker, _ = of(stage)
        # Longer than the 10 s that a request may take on the connections that commit offsets.
        broker.pause()
        try:
            time.sleep(9 + fault.seconds)
        finally:
            broker.resume()

    return pause


def _cutting(of: _Cluster = _target) -> Callable[[Stage, Fault], None]:
    def cut(stage: Stage, fault: Fault) -> None:
        _, proxy = of(stage)
        for _ in range(1 + int(fault.choice * 3)):
            proxy.cut()
            time.sleep(0.2)

    return cut


def _network_delay(stage: Stage, fault: Fault) -> None:
    stage.proxy.latency = 0.02 + fault.choice / 4
    try:
        time.sleep(fault.seconds)
    finally:
        stage.proxy.latency = 0.0


def _blocking(direction: str, of: _Cluster = _target) -> Callable[[Stage, Fault], None]:
    def block(stage: Stage, fault: Fault) -> None:
        _, proxy = of(stage)
        proxy.blocked = frozenset({direction})
        try:
            time.sleep(fault.seconds)
            if fault.choice < 0.5:
                # Requests and answers under way are lost with their connections.
                proxy.cut()
        finally:
            proxy.blocked = frozenset()

    return block


def _workers_cut_off(stage: Stage, fault: Fault) -> None:
    """A network fault between workers and brokers only: the driver stays a member."""
    deeds = (_cutting(), _network_delay, _blocking("answers"), _blocking("requests"))
    driver = f"-{stage.query.pid}"
    chosen = fault.choice * len(deeds)

    def concerned(client_id: str) -> bool:
        return client_id.startswith("spark-eos-") and not client_id.endswith(driver)

    stage.proxy.concerns = concerned
    try:
        deeds[int(chosen)](stage, replace(fault, choice=round(chosen % 1, 3)))
    finally:
        stage.proxy.concerns = everybody


def _registry_kill(stage: Stage, fault: Fault) -> None:
    assert stage.registry is not None
    stage.registry.kill()
    time.sleep(4 * fault.seconds)
    stage.registry.start()


def _registry_pause(stage: Stage, fault: Fault) -> None:
    """The registry accepts connections, but does not answer."""
    assert stage.registry is not None
    stage.registry.pause()
    try:
        time.sleep(4 * fault.seconds)
    finally:
        stage.registry.resume()


def _task_sleep(stage: Stage, fault: Fault) -> None:
    seconds = stage.transaction_timeout_ms / 1000 + fault.seconds
    loads.ask_a_task_to_sleep(stage.control, seconds)
    time.sleep(seconds)


def _user_exception(stage: Stage, fault: Fault) -> None:
    loads.ask_a_task_to_raise(stage.control)
    time.sleep(fault.seconds / 3)


def _quick_restart(stage: Stage, fault: Fault) -> None:
    # Make a task sleep, so that the stopped query leaves a zombie.
    loads.ask_a_task_to_sleep(stage.control, fault.seconds + 1)
    time.sleep(fault.choice / 2)
    queries = len(stage.query.queries())
    (stage.control / "restart").touch()
    wait_for(
        lambda: stage.query.exit_status() is not None or len(stage.query.queries()) != queries,
        time.monotonic() + _PATIENCE,
        f"the query does not stop and start again: {stage.query.log}",
    )


def _while_stopped(change: Callable[[Stage, Fault], None]) -> Callable[[Stage, Fault], None]:
    def stopped(stage: Stage, fault: Fault) -> None:
        stage.query.kill()
        change(stage, fault)
        stage.start()

    return stopped


def _delete_checkpoint(stage: Stage, _fault: Fault) -> None:
    shutil.rmtree(stage.checkpoint)


def _batches(directory: Path) -> list[int]:
    return sorted(int(p.name) for p in directory.glob("[0-9]*") if p.name.isdigit())


def _forget(directory: Path, batch: int) -> None:
    (directory / str(batch)).unlink(missing_ok=True)
    (directory / f".{batch}.crc").unlink(missing_ok=True)


def _roll_checkpoint_back(stage: Stage, fault: Fault) -> None:
    offsets, commits = stage.checkpoint / "offsets", stage.checkpoint / "commits"
    back = 1 + int(fault.choice * 4)
    # The last remaining batch must be in the commit log; otherwise, Spark would refuse the log.
    for batch in _batches(offsets)[-back:]:
        if batch > 0:
            _forget(offsets, batch)
            _forget(commits, batch)


def _delete_commit_log_entry(stage: Stage, _fault: Fault) -> None:
    commits = stage.checkpoint / "commits"
    for batch in _batches(commits)[-1:]:
        _forget(commits, batch)


def _add_partitions(stage: Stage, _fault: Fault) -> None:
    if stage.partitions >= _MOST_PARTITIONS:
        raise NotInflictedError("there are enough partitions")
    total = stage.partitions + 1
    for topic in stage.sources:
        _once_the_broker_is_back(_add_partition, stage, topic, total)
    stage.partitions = total


def _once_the_broker_is_back(act: Callable[..., None], *arguments: Any) -> None:
    """Retries a call, since another fault may have stopped the broker or the node that it asks."""
    Retrying(
        retry=retry_if_exception_type((RuntimeError, KafkaException, TimeoutError)),
        wait=wait_fixed(0.2),
        stop=stop_after_delay(_PATIENCE),
        reraise=True,
    )(act, *arguments)


def _add_partition(stage: Stage, topic: str, total: int) -> None:
    if len(stage.source_admin.list_topics(topic, timeout=5).topics[topic].partitions) < total:
        stage.source_broker.add_partitions(topic, total)


def _delete_offsets(stage: Stage, _fault: Fault) -> None:
    """The query must restore the offsets, or refuse to continue until an operator restores them."""
    end = time.monotonic() + AN_OCCASION
    while len(_batches(stage.checkpoint / "offsets")) < 3 and time.monotonic() < end:
        time.sleep(0.1)
    if len(_batches(stage.checkpoint / "offsets")) < 3:
        raise NotInflictedError("with batch 0 alone, lost offsets can't be told from a new group's")
    stage.query.kill()
    _end_members(stage)
    known = stage.group_offsets()
    assert known is not None
    begun, ended = stage.checkpoint / "offsets", stage.checkpoint / "commits"
    finished = _batches(begun)[-1:] == _batches(ended)[-1:]
    with stage.watcher.offsets_may_go_back():
        groups.delete_group(stage.servers, stage.name)
        stage.start()
        end = time.monotonic() + _PATIENCE
        while stage.query.exit_status() is None:
            if any((found := stage.committed() or {}).values()):
                # Between two batches, the checkpoint proves what the offsets were.
                if finished and are_restored(found, known):
                    return
                raise ViolationError(Rule.STOPS_WITHOUT_OFFSETS, "it has committed new ones")
            if time.monotonic() > end:
                raise TrialError("the query does not end although its group's offsets are gone")
            time.sleep(0.1)
        if "OffsetsLostError" not in stage.query.text():
            raise TrialError(
                f"the query ended without saying that offsets were lost: {stage.query.log}"
            )
        stage.query.kill()
        _end_members(stage)
        groups.set_offsets(
            stage.servers,
            stage.name,
            groups.positions(known),
            # The texts hold a staged query's commit, or what a mirrored query's offset represents.
            {partition: one.metadata for partition, one in known.items()}
            if stage.staged or stage.mirrored
            else None,
        )
    stage.start()


def are_restored(
    found: Mapping[TopicPartition, int], known: Mapping[TopicPartition, CommittedOffset]
) -> bool:
    """Return True if no offset is below the known one."""
    return all(found.get(partition, one.offset) >= one.offset for partition, one in known.items())


def _target_refuses(stage: Stage, fault: Fault) -> None:
    """The brokers refuse records that were small enough until now.

    A task that begins now knows the new limit; a running task learns it from the broker.
    """
    topic = stage.targets[int(fault.choice * len(stage.targets))]
    before = stage.largest_message(topic) or 10_000_000
    _once_the_broker_is_back(_set_largest_message, stage, topic, 100)
    try:
        time.sleep(fault.seconds)
    finally:
        _once_the_broker_is_back(_set_largest_message, stage, topic, before)


def _set_largest_message(stage: Stage, topic: str, size: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    stage.admin.incremental_alter_configs([resource])[resource].result(20)


def _late_offsets(stage: Stage, fault: Fault) -> None:
    """An offset commit whose connection is cut reaches the broker in the next transaction."""
    late = LateOffsets(stage.proxy)
    rule = stage.proxy.on(TxnOffsetCommitRequest, late, times=None)
    delivered = late.delivered.wait(AN_OCCASION)
    rule.times = 0
    if not delivered:
        raise NotInflictedError("no transaction followed the one whose offsets were held back")
    if fault.choice < 0.7:
        # Kill the query before the next transaction hides the effect of this one.
        time.sleep(0.05)
        stage.query.kill()


def _end_members(stage: Stage) -> None:
    """Waits until a killed query's members and open transactions are gone."""
    time.sleep(max(SESSION_TIMEOUT_MS, stage.transaction_timeout_ms) / 1000 + 1.5)


_DEEDS: dict[Kind, Callable[[Stage, Fault], None]] = {
    Kind.WORKER_KILL: _killing(processes.workers_of),
    Kind.WORKER_PAUSE: _pausing(processes.workers_of),
    Kind.EXECUTOR_KILL: _killing(processes.executors_of),
    Kind.EXECUTOR_PAUSE: _pausing(processes.executors_of),
    Kind.DRIVER_KILL: _killing(_driver),
    Kind.DRIVER_PAUSE: _pausing(_driver),
    Kind.JVM_KILL: _killing(processes.jvm_of),
    Kind.QUERY_KILL: _query_kill,
    Kind.ASYNCHRONOUS_KILL: _query_kill,
    Kind.RELAY_KILL: _query_kill,
    Kind.JVM_PAUSE: _pausing(processes.jvm_of),
    Kind.HOLDER_KILL: _killing(processes.holders_of),
    Kind.HOLDER_PAUSE: _pausing(processes.holders_of),
    Kind.SESSION_EXPIRY: _session_expiry,
    Kind.BROKER_KILL: _broker_away(EmbeddedKafka.kill),
    Kind.BROKER_RESTART: _broker_away(EmbeddedKafka.stop),
    Kind.BROKER_PAUSE: _broker_paused(),
    Kind.NETWORK_CUT: _cutting(),
    Kind.NETWORK_DELAY: _network_delay,
    Kind.NETWORK_NO_ANSWERS: _blocking("answers"),
    Kind.NETWORK_NO_REQUESTS: _blocking("requests"),
    Kind.WORKERS_CUT_OFF: _workers_cut_off,
    Kind.TASK_SLEEP: _task_sleep,
    Kind.USER_EXCEPTION: _user_exception,
    Kind.QUICK_RESTART: _quick_restart,
    Kind.TWO_DRIVERS: two_drivers,
    Kind.FROZEN_QUERY: frozen_query,
    Kind.CHECKPOINT_DELETED: _while_stopped(_delete_checkpoint),
    Kind.CHECKPOINT_ROLLED_BACK: _while_stopped(_roll_checkpoint_back),
    Kind.COMMIT_LOG_ENTRY_DELETED: _while_stopped(_delete_commit_log_entry),
    Kind.PARTITIONS_ADDED: _add_partitions,
    Kind.OFFSETS_DELETED: _delete_offsets,
    Kind.TARGET_REFUSES: _target_refuses,
    Kind.LATE_OFFSETS: _late_offsets,
    Kind.SOURCE_BROKER_KILL: _broker_away(EmbeddedKafka.kill, _source),
    Kind.SOURCE_BROKER_RESTART: _broker_away(EmbeddedKafka.stop, _source),
    Kind.SOURCE_BROKER_PAUSE: _broker_paused(_source),
    Kind.SOURCE_NETWORK_CUT: _cutting(_source),
    Kind.SOURCE_NETWORK_NO_ANSWERS: _blocking("answers", _source),
    Kind.REGISTRY_KILL: _registry_kill,
    Kind.REGISTRY_PAUSE: _registry_pause,
    **node_faults.DEEDS,
}


_STAGED_DEEDS = {
    **_DEEDS,
    **staged_faults.DEEDS,
    Kind.CHECKPOINT_ROLLED_BACK: staged_faults.roll_back(_roll_checkpoint_back),
}


def inflict_together(
    stage: Stage, faults: tuple[Fault, ...], between: float
) -> tuple[float, list[Fault]]:
    """Inflicts one or two faults; returns the time of their end, and faults without an occasion."""
    failures: list[BaseException] = []
    missed: list[Fault] = []

    def work(fault: Fault) -> None:
        try:
            inflict(stage, fault)
        except NotInflictedError:
            missed.append(fault)
        except BaseException as error:  # noqa: BLE001 - reported by the trial
            failures.append(error)

    threads = [threading.Thread(target=work, args=(fault,)) for fault in faults]
    for thread in threads:
        thread.start()
        time.sleep(between)
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.monotonic(), missed
