import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from spark_eos._client.settings import ClientSettings
from spark_eos._kafka import list_offsets
from spark_eos._kafka.cluster import broker_features
from spark_eos._kafka.connection import Connections
from spark_eos.testing import BrokerStartError, EmbeddedKafka
from spark_eos.testing.broker_admin import admin_client
from spark_eos.testing.broker_properties import Ports, cluster_ports, free_numbers
from spark_eos.testing.broker_security import BrokerSecurity, SecuredListener
from spark_eos.testing.embedded_server import on_free_ports
from support.connect_server import lives
from support.flow import consume
from support.members import deadline
from support.queries import until


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as broker:
        yield broker


def alive(pid: int) -> bool:
    try:
        return lives(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def data_directory(pid: int) -> Path:
    return Path(f"/proc/{pid}/cwd").readlink()


def send(broker: EmbeddedKafka, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


def partitions(broker: EmbeddedKafka, topic: str) -> int | None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    found = admin.list_topics(timeout=60).topics.get(topic)
    return None if found is None else len(found.partitions)


@pytest.mark.slow
def test_a_topic_of_many_partitions_can_be_used_at_once(kafka: EmbeddedKafka) -> None:
    """Otherwise, an idempotent producer's first batch may be refused, and its second accepted."""
    with closing(
        Connections(ClientSettings({"bootstrap.servers": kafka.bootstrap_servers}))
    ) as connections:
        leaders = list_offsets.partition_leaders(connections, ["first"], deadline())
        assert leaders == {}
        kafka.create_topic("first", 500)
        kafka.create_topic("second", 1)
        kafka.add_partitions("second", 500)
        for topic in ("first", "second"):
            leaders = list_offsets.partition_leaders(connections, [topic], deadline())
            # A single attempt, which raises if a partition has no leader that works.
            found = list_offsets._listed(connections, leaders, deadline())
            assert found == {(topic, partition): 0 for partition in range(500)}


def test_topics_are_created_extended_and_deleted(embedded_kafka: EmbeddedKafka) -> None:
    kafka = embedded_kafka
    kafka.create_topic("letters", partitions=2)
    assert partitions(kafka, "letters") == 2
    with pytest.raises(KafkaException, match="already exists"):
        kafka.create_topic("letters")
    kafka.add_partitions("letters", 5)
    assert partitions(kafka, "letters") == 5
    kafka.delete_topic("letters")
    assert partitions(kafka, "letters") is None


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop", "stop without grace"])
def test_a_restart_keeps_data_and_address(kafka: EmbeddedKafka, how: str) -> None:
    kafka.create_topic("kept")
    send(kafka, "kept", b"before")
    address, pid = kafka.bootstrap_servers, kafka.pid
    if how == "kill":
        kafka.kill()
    else:
        kafka.stop(grace=10 if how == "stop" else 0)
    process = kafka.nodes[0]._remains.process
    assert process is not None
    # 143 is how a JVM ends regularly after SIGTERM.
    assert process.exit_code() == (143 if how == "stop" else -signal.SIGKILL)
    assert not alive(pid)
    assert not kafka.is_running
    with pytest.raises(RuntimeError, match="not running"):
        kafka.create_topic("other")
    kafka.start()
    assert kafka.bootstrap_servers == address
    assert kafka.pid != pid
    send(kafka, "kept", b"after")
    found = [message.value() for message in consume(kafka.bootstrap_servers, "kept")]
    assert found == [b"before", b"after"]


@pytest.mark.slow
def test_a_paused_broker_is_silent_and_can_be_stopped(kafka: EmbeddedKafka) -> None:
    admin = admin_client(kafka.bootstrap_servers)
    admin.list_topics(timeout=60)
    kafka.pause()
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.5)
    kafka.resume()
    assert admin.list_topics(timeout=60).brokers
    kafka.pause()
    kafka.pause()
    process = kafka.nodes[0]._remains.process
    assert process is not None
    kafka.stop()
    assert not alive(process.pid)
    # Woken up for SIGTERM, not killed after the grace time.
    assert process.exit_code() == 128 + signal.SIGTERM
    kafka.nodes[0].start()
    kafka.create_topic("other")


def test_close_removes_process_and_data() -> None:
    broker = EmbeddedKafka()
    broker.start()
    pid, directory = broker.pid, data_directory(broker.pid)
    assert (directory / "data" / "meta.properties").exists()
    with pytest.raises(RuntimeError, match="already running"):
        broker.start()
    broker.close()
    broker.close()
    assert not alive(pid)
    assert not directory.exists()
    assert "Performing controller activation" in broker.log()


@pytest.mark.slow
def test_features_and_properties_reach_the_broker() -> None:
    with EmbeddedKafka(
        features={"transaction.version": 1}, properties={"num.partitions": "7"}
    ) as broker:
        settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers}
        node = ConfigResource(ConfigResource.Type.BROKER, "1")
        # Without a name it would be gone before it answers.
        admin = admin_client(broker.bootstrap_servers)
        assert admin.describe_configs([node])[node].result(60)["num.partitions"].value == "7"
        with closing(Connections(ClientSettings(settings))) as connections:
            features = broker_features(connections, deadline()).features
        assert features["transaction.version"] == 1
        # What is not chosen is the newest.
        assert features["group.version"] > 0


def test_a_broker_that_cannot_start_shows_its_log() -> None:
    broker = EmbeddedKafka(properties={"log.segment.bytes": "many"})
    with pytest.raises(BrokerStartError, match=r"log\.segment\.bytes") as caught:
        broker.start()
    assert "exit code 1" in str(caught.value)
    assert not broker.is_running
    assert "log.segment.bytes" in broker.log()


@pytest.mark.slow
def test_a_feature_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BrokerStartError, match=r"no\.such\.feature"):
        EmbeddedKafka(features={"no.such.feature": 1}).start()


def test_a_port_that_is_taken_is_named(embedded_kafka: EmbeddedKafka) -> None:
    port = int(embedded_kafka.bootstrap_servers.rpartition(":")[2])
    with pytest.raises(BrokerStartError, match=f"Port {port} .* is in use"):
        EmbeddedKafka(port=port).start()


def test_there_are_as_many_ports_as_nodes() -> None:
    with pytest.raises(ValueError, match="port is 65535, which leaves too few ports for 2 nodes"):
        EmbeddedKafka(nodes=2, port=65_535)


@pytest.mark.slow
def test_a_start_that_fails_after_all_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def refuse(*_: object) -> None:
        started.append(broker.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(BrokerSecurity, "create_credentials", refuse)
    listeners = {"SASL": SecuredListener("SASL_PLAINTEXT", mechanisms=("PLAIN",))}
    broker = EmbeddedKafka(security=BrokerSecurity(listeners, users={"alice": "secret"}))
    with pytest.raises(KeyboardInterrupt):
        broker.start()
    assert not any(map(alive, started))
    assert started
    assert broker.nodes[0]._remains.directory is None


OWNER = """
import os, sys, time
from spark_eos.testing import EmbeddedKafka
broker = EmbeddedKafka()
broker.start()
pid, directory = broker.pid, os.readlink(f"/proc/{broker.pid}/cwd")
if sys.argv[1] == "killed after its broker":
    broker.kill()
print(pid, directory, flush=True)
if sys.argv[1] != "forgets to close":
    time.sleep(600)
"""


@pytest.mark.parametrize(
    "how",
    [
        "killed",
        pytest.param("killed after its broker", marks=pytest.mark.slow),
        pytest.param("forgets to close", marks=pytest.mark.slow),
    ],
)
def test_nothing_outlives_its_owner(how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, how],
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        number, name = owner.stdout.readline().split()
        pid, directory = int(number), Path(name)
        if how != "forgets to close":
            assert (directory / "data").is_dir()
            assert alive(pid) == (how == "killed")
            owner.send_signal(signal.SIGKILL)
            owner.wait()
            until(lambda: not alive(pid), lambda: "the broker's end", 60)
            until(lambda: not directory.exists(), lambda: "its directory's end", 60)
        else:
            assert owner.wait(120) == 0
            assert not alive(pid)
            assert not directory.exists()


@pytest.mark.slow
def test_a_fork_leaves_the_broker_alone(kafka: EmbeddedKafka) -> None:
    child = os.fork()
    if child == 0:
        kafka.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert alive(kafka.pid)
    assert data_directory(kafka.pid).exists()
    assert partitions(kafka, "none") is None


# A child that outlives what its parent does, with the parent's pipes.
FORK = """
import os, time
if os.fork() == 0:
    time.sleep(30)
    os._exit(0)
"""


def test_closing_does_not_wait_for_a_fork() -> None:
    """A fork holds the pipe open on which the guard waits for its owner's end."""
    script = f"""
from spark_eos.testing import EmbeddedKafka
kafka = EmbeddedKafka()
kafka.start()
{FORK}
kafka.close()
"""
    # The fork must not hold this process's output open.
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=25, **quiet)


@pytest.mark.slow
def test_nothing_outlives_an_owner_that_has_forked() -> None:
    script = OWNER.replace("print(", f"{FORK}\nprint(", 1)
    with subprocess.Popen(
        [sys.executable, "-c", script, "killed"], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        number, name = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        until(lambda: not alive(int(number)), lambda: "the broker's end", 30)
        until(lambda: not Path(name).exists(), lambda: "its directory's end", 30)


def test_given_ports_are_not_drawn() -> None:
    given = free_numbers(3)
    chosen = cluster_ports(given, [None, None, given[0]], ["SASL"])
    drawn = [
        n for ports in chosen for n in (ports.internal, ports.controller, *ports.secured.values())
    ]
    assert len({*drawn, *given}) == 9 + 3
    assert [ports.client for ports in chosen] == given


def test_a_port_that_another_process_has_taken_is_tried_again() -> None:
    texts = iter(["java.net.BindException: Die Adresse wird bereits verwendet", ""])

    def start() -> None:
        if text := next(texts):
            raise BrokerStartError(text)

    on_free_ports()(start)


@pytest.mark.slow
def test_a_node_whose_port_is_taken_does_not_keep_the_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = [True]

        def ports(*arguments: Any) -> tuple[Ports, ...]:
            chosen = cluster_ports(*arguments)
            if first.pop() if first else False:
                return (chosen[0], replace(chosen[1], controller=taken.getsockname()[1]))
            return chosen

        monkeypatch.setattr("spark_eos.testing.broker.cluster_ports", ports)
        with EmbeddedKafka(nodes=2) as kafka:
            assert kafka.is_running
        assert first == []
