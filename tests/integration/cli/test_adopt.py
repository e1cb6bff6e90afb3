"""``spark-eos adopt``: from Spark's own Kafka sink to spark-eos, without loss or doubles."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import kafka
import pytest
from click.testing import Result
from confluent_kafka import Producer
from kafka import KafkaAdminClient
from pyspark.sql import SparkSession

from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactional_ids import id_stem
from support import groups
from support.flow import Flow
from support.members import started
from support.operating import run
from support.proxy import KafkaProxy, broker_that_is_away
from support.queries import run_available, run_sparks_sink


def _adopt(flow: Flow, *more: str) -> Result:
    return run("adopt", flow, "--checkpoint", flow.checkpoint, *more)


def _refused(flow: Flow, words: str, *more: str) -> None:
    before = flow.committed()
    result = _adopt(flow, *more)
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert flow.committed() == before


def _checkpoint(flow: Flow, ends: Mapping[int, int], *, finished: bool = True) -> None:
    """A checkpoint of one batch, in Spark's format."""
    base = Path(flow.checkpoint)
    files = {
        "metadata": '{"id":"b6b2"}',
        "sources/0/0": "\0v1\n" + json.dumps({flow.source: dict.fromkeys(ends, 0)}),
        "offsets/0": "v1\n{}\n" + json.dumps({flow.source: ends}),
        **({"commits/0": 'v1\n{"nextBatchWatermarkMs":0}'} if finished else {}),
    }
    for name, text in files.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text)


# The procedure of docs/moving.md ------------------------------------------------------------------


@pytest.mark.slow
def test_a_query_of_sparks_own_sink_goes_on(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(50))
    where = (flow.bootstrap_servers, flow.source, flow.target, flow.checkpoint)
    run_sparks_sink(spark_eos_session, *where, maxOffsetsPerTrigger="20")
    assert len(flow.values()) == 50
    flow.produce(range(50, 80))

    dry = _adopt(flow, "--dry-run")
    last = dry.output.splitlines()[-1]
    assert last.startswith(f"Group {flow.group_id} would continue from the end")
    assert flow.committed() == {}
    result = _adopt(flow)
    assert result.output.splitlines() == [
        f"{flow.source}-0: 25",
        f"{flow.source}-1: 25",
        f"Group {flow.group_id} continues from the end of batch 2, in 2 partitions.",
    ]
    assert flow.committed() == {0: 25, 1: 25}
    again = _adopt(flow)
    assert (again.exit_code, "already has these offsets" in again.output) == (0, True)

    # The topic grows before the first start.
    flow.broker.add_partitions(flow.source, 3)
    flow.produce(range(80, 90), partition=2)
    flow.checkpoint += "-anew"
    (report,) = run_available(spark_eos_session, flow)
    assert report.rows_written == 40
    assert sorted(flow.values(), key=int) == [str(n) for n in range(90)]
    assert flow.committed() == {0: 40, 1: 40, 2: 10}


# Without Spark ------------------------------------------------------------------------------------


def test_a_batch_that_has_not_finished_is_repeated_if_so_wanted(flow: Flow) -> None:
    flow.produce(range(20))
    _checkpoint(flow, {0: 10, 1: 10}, finished=False)
    _refused(flow, "batch 0 of the checkpoint was begun but not finished")
    result = _adopt(flow, "--repeat-unfinished", "--dry-run")
    assert result.output.splitlines()[-1].endswith("continue from the start, in 2 partitions.")
    _checkpoint(flow, {0: 10, 1: 10})
    (Path(flow.checkpoint) / "offsets" / "1").write_text(
        "v1\n{}\n" + json.dumps({flow.source: {0: 99, 1: 99}})
    )
    _refused(flow, "batch 1 of the checkpoint was begun")
    result = _adopt(flow, "--repeat-unfinished")
    assert result.output.splitlines()[-1].endswith("from the end of batch 0, in 2 partitions.")
    assert flow.committed() == {0: 10, 1: 10}


def test_a_group_that_is_in_use(flow: Flow) -> None:
    flow.produce(range(20))
    _checkpoint(flow, {0: 10, 1: 10})
    with started(flow):
        _refused(flow, f"group_id '{flow.group_id}' has a live member: client id 'spark-eos-")
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, {TopicPartition(flow.source, 0): 3})
    _refused(flow, f"already has offsets, such as 3 of {flow.source}-0")


def test_a_group_whose_query_has_left_a_transaction_open(flow: Flow) -> None:
    flow.produce(range(20))
    _checkpoint(flow, {0: 10, 1: 10})
    transactional_id = f"{id_stem('spark-eos', flow.group_id)}/host/0"
    producer = Producer({**flow.kafka, "transactional.id": transactional_id})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(flow.target, b"a")
    producer.flush(60)
    _refused(flow, "has open transactions: a spark-eos query has used it")
    producer.abort_transaction(20)
    assert _adopt(flow).exit_code == 0


@pytest.mark.slow
def test_transactions_that_a_broker_does_not_list(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    proxied_flow.produce(range(20))
    _checkpoint(proxied_flow, {0: 10, 1: 10})
    with broker_that_is_away(proxy, silent=True) as port:
        result = _adopt(proxied_flow, "--timeout", "8")
    assert result.exit_code == 1
    assert "listing open transactions" in result.stderr
    assert f"not answered by broker 2 (127.0.0.1:{port})" in result.stderr
    assert proxied_flow.committed() == {}


def test_offsets_that_the_topic_does_not_have(flow: Flow) -> None:
    flow.produce(range(20))
    _checkpoint(flow, {0: 10, 1: 11})
    _refused(flow, f"has read {flow.source}-1 up to 11, but it ends at 10: the topic was deleted")
    _checkpoint(flow, {0: 4, 1: 10})
    with closing(KafkaAdminClient(bootstrap_servers=flow.bootstrap_servers)) as admin:
        admin.delete_records({kafka.TopicPartition(flow.source, 0): 5})
    _refused(flow, f"{flow.source}-0 up to 4, but it begins at 5: offsets 4 to 4 were deleted")
    _checkpoint(flow, {0: 10, 1: 10, 2: 10})
    _refused(flow, f"the checkpoint has offsets of {flow.source}-2, which does not exist")


def test_what_is_no_checkpoint_of_a_kafka_query(flow: Flow) -> None:
    _refused(flow, "there is no streaming checkpoint at")
    _checkpoint(flow, {0: 0, 1: 0})
    offsets = Path(flow.checkpoint) / "offsets" / "0"
    offsets.write_text("v1\n{}\n7")
    _refused(flow, "holds a source whose offsets are not Kafka's")
    offsets.unlink()
    _refused(flow, "checkpoint' has no batch")
