"""The ACLs that a principal needs to use and create a progress topic."""

from contextlib import closing

import pytest
from pyspark.sql import SparkSession

from spark_eos import ExactlyOnceSink
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.cluster import TopicInfo
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.progress_topic import ensure_progress_topic
from spark_eos.errors import AuthorizationError
from spark_eos.options import ProgressTopic
from support.granting import Guarded
from support.members import deadline, started
from support.operating import run
from support.sinks import arguments
from support.writing import rows, transactions


def _name(flow: Guarded) -> str:
    return f"progress-{flow.name}"


def _commands(flow: Guarded) -> tuple[str, str]:
    """The commands that grant Read and Create."""
    usual, found = flow.commands(), flow.commands("--progress-topic", _name(flow))
    read, create = [line for line in found if line not in usual]
    return read, create


def _ensure(flow: Guarded) -> TopicInfo:
    with closing(Connections(ClientSettings(flow.kafka))) as connections:
        return ensure_progress_topic(connections, ProgressTopic(_name(flow), 3, 1), deadline())


def _refused(flow: Guarded) -> AuthorizationError:
    with pytest.raises(AuthorizationError) as refusal:
        _ensure(flow)
    assert refusal.value.code == 29
    return refusal.value


def test_with_just_the_acls_printed_it_is_created(flow: Guarded) -> None:
    read, create = _commands(flow)
    flow.grant(read, create)
    created = _ensure(flow)
    assert created.partitions == 3
    # Create was needed only once.
    flow.revoke(create)
    assert _ensure(flow) == created


def test_without_read(flow: Guarded) -> None:
    read, create = _commands(flow)
    flow.grant(create)
    lacks = f"{flow.principal} lacks Read on topic '{_name(flow)}'. To grant: {read}"
    assert f"29 TOPIC_AUTHORIZATION_FAILED: {lacks}" in str(_refused(flow))
    # As long as it does not exist, Describe can't be told from Read.
    flow.grant(read.replace("Read", "Describe"))
    for _ in range(2):
        error = _refused(flow)
        assert lacks in str(error)
        assert [str(acl) for acl in error.missing] == [f"Read on topic '{_name(flow)}'"]
    flow.grant(read)
    assert _ensure(flow).partitions == 3


def test_without_create(flow: Guarded) -> None:
    read, create = _commands(flow)
    flow.grant(read)
    error = _refused(flow)
    servers = flow.kafka["bootstrap.servers"]
    assert [str(acl) for acl in error.missing] == [f"Create on topic '{_name(flow)}'"]
    assert error.text.endswith(
        f": 29 TOPIC_AUTHORIZATION_FAILED: {flow.principal} lacks Create on topic '{_name(flow)}'. "
        f"To grant: {create}. Or create the topic: kafka-topics.sh --bootstrap-server {servers} "
        f"--command-config FILE --create --topic {_name(flow)} --partitions 3 "
        "--replication-factor 1"
    )
    # An administrator does that.
    flow.broker.create_topic(_name(flow), 3)
    assert _ensure(flow).partitions == 3


def test_a_start_names_it_with_everything_else(
    flow: Guarded, spark_eos_session: SparkSession
) -> None:
    options = {**flow.options(), "progress_topic": _name(flow), "delivery": "staged"}
    frame = spark_eos_session.readStream.format("rate").load().selectExpr("string(value) AS value")
    ids = f"spark-eos/{flow.group_id}/"
    names = {_name(flow), flow.target, flow.group_id, ids}
    with closing(ExactlyOnceSink(**arguments(**options))) as sink:
        with pytest.raises(AuthorizationError) as refusal:
            sink.write(frame)
        assert {acl.name for acl in refusal.value.missing} == names
        read, create = _commands(flow)
        flow.grant(read, *flow.commands())
        with pytest.raises(AuthorizationError) as refusal:
            sink.write(frame)
        assert [str(acl) for acl in refusal.value.missing] == [f"Create on topic '{_name(flow)}'"]
        flow.grant(create)
        sink.write(frame)
    assert _ensure(flow).partitions > 1


@pytest.mark.parametrize("command", ["status", "abort"])
def test_commands_see_the_members_with_what_is_printed_for_them(
    command: str, flow: Guarded
) -> None:
    # As many partitions as the flow's topics have.
    flow.broker.create_topic(_name(flow), flow.partitions)
    usual = flow.commands("--for", command)
    more = flow.commands("--for", command, "--progress-topic", _name(flow))
    flow.grant(*usual)
    # Abort looks for members once there is something to abort.
    anyone = ClientSettings({"bootstrap.servers": flow.bootstrap_servers})
    with (
        started(flow, also=[_name(flow)]) as membership,
        transactions(flow, membership, client=anyone) as writing,
    ):
        writing.add(rows(flow, 0, 0))
        writing._producer.records.flush(deadline())
        yes = ["--yes"] if command == "abort" else []
        assert "lacks Describe on a topic of its members" in run(command, flow, *yes).stderr
        assert len(flow.open_transactions()) == 1
        flow.grant(*(line for line in more if line not in usual))
        assert run(command, flow, *yes).exit_code == 0
