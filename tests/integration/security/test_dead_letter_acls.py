"""The ACLs that a principal needs to write and replay dead letters."""

from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import ExactlyOnceSink
from spark_eos._cli import main
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.source_records import SourceRecords
from spark_eos.errors import AuthorizationError
from support.dead_letters import create_dead_letter_topic, headers_of, replay
from support.granting import Guarded
from support.granting_mirrored import GuardedMirror
from support.members import writer_settings
from support.queries import relay, run_available
from support.sinks import arguments, changed


def _inflated(frame: DataFrame) -> DataFrame:
    """Rows that say "large" are too large for this client: their dead letters are read again."""
    text = F.col("value").cast("string")
    large = F.when(text == "large", F.repeat(F.lit("x"), 2_000_000)).otherwise(text)
    return frame.select("source", large.alias("value"))


def test_the_missing_one_is_named_before_the_query_starts(
    flow: Guarded, spark_eos_session: SparkSession
) -> None:
    dlq = create_dead_letter_topic(flow)
    flow.grant(*flow.commands())
    more = {*flow.commands("--dead-letter-topic", dlq)} - {*flow.commands()}
    (needed,) = [line for line in more if "DescribeConfigs" not in line]
    sink = ExactlyOnceSink(**arguments(**flow.options(), dead_letter_topic=dlq))
    with pytest.raises(AuthorizationError) as refusal:
        sink.write(relay(sink.read(spark_eos_session, subscribe=flow.source)))
    assert f"lacks Write on topic '{dlq}'. To grant: {needed}" in str(refusal.value)


@pytest.mark.parametrize("left", ["nothing", "Describe"])
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_record_that_may_not_be_read_again(flow: Guarded, left: str, *, mirrored: bool) -> None:
    flow.produce(["a"], partition=0)
    read, *_others = flow.commands()
    if left == "Describe":
        flow.grant(read.replace("Read", left))
    settings = writer_settings(flow)
    if mirrored:
        # The right is missing in the cluster of the source.
        target = ClientSettings({"bootstrap.servers": "localhost:1"})
        settings = changed(settings, client=target, source_client=settings.client)
    with closing(SourceRecords(settings)) as records, pytest.raises(TransactionError) as refusal:
        records.fetch(TopicPartition(flow.source, 0), 0)
    assert not refusal.value.again
    lacks = f"{flow.principal} lacks Read on topic '{flow.source}'. To grant: {read}"
    assert str(refusal.value).endswith(lacks)


@pytest.mark.slow
def test_the_acls_printed_allow_reading_another_clusters_records(
    guarded_mirror: GuardedMirror, spark_eos_session: SparkSession
) -> None:
    dlq = create_dead_letter_topic(guarded_mirror)
    guarded_mirror.grant_all("--dead-letter-topic", dlq)
    guarded_mirror.produce(["a", "large", "b"], partition=1, key=b"k", headers=[("trace", b"t")])
    (report,) = run_available(spark_eos_session, guarded_mirror, _inflated, dead_letter_topic=dlq)
    assert (report.delivery, report.dead_letters) == ("mirrored", {"too_large": 1})
    assert sorted(guarded_mirror.values()) == ["a", "b"]
    (dead_letter,) = guarded_mirror.written(dlq)
    assert (dead_letter.key(), dead_letter.value()) == (b"k", b"large")
    headers = headers_of(dead_letter)
    assert (headers["trace"], headers["__dlq.errors.topic"]) == ("t", guarded_mirror.source)
    assert (headers["__dlq.errors.partition"], headers["__dlq.errors.offset"]) == ("1", "1")
    assert guarded_mirror.committed() == {0: 0, 1: 3}


@pytest.mark.slow
def test_a_replay_needs_the_rights_of_a_query(
    flow: Guarded, spark_eos_session: SparkSession, tmp_path: Path
) -> None:
    dlq = create_dead_letter_topic(flow)
    flow.grant(*flow.commands("--dead-letter-topic", dlq))
    flow.produce(["a", "large", "b"], partition=0)
    run_available(spark_eos_session, flow, _inflated, dead_letter_topic=dlq)
    for line in flow.commands("--dead-letter-topic", dlq):
        flow.revoke(line)
    group = f"replay-{flow.name}"
    names = ("--source", dlq, "--target", flow.source, "--group-id", group)
    read, *others = needed = flow.commands_for(*names)
    flow.grant(read)
    settings = tmp_path / "settings"
    settings.write_text("".join(f"{name}={text}\n" for name, text in flow.kafka.items()))
    servers = str(flow.kafka["bootstrap.servers"])
    where = ("--bootstrap-servers", servers, "--kafka-config", str(settings))
    counted = CliRunner().invoke(main, ["dead-letters", "count", "--topic", dlq, *where])
    assert "\n1 dead letter.\n" in counted.stdout
    flow.grant(*others)
    # Without DescribeConfigs, brokers decide.
    for line in (each for each in needed if "DescribeConfigs" not in each):
        with flow.without(line):
            refused = replay(flow, *where)
        assert refused.exit_code == 1, line
        assert "AUTHORIZATION_FAILED" in refused.output
        assert len(flow.written(flow.source)) == 3
    done = replay(flow, *where)
    assert done.exit_code == 0, done.output
    assert flow.values(flow.source) == ["a", "large", "b", "large"]


@pytest.mark.slow
def test_what_is_printed_is_enough(flow: Guarded, spark_eos_session: SparkSession) -> None:
    dlq = create_dead_letter_topic(flow)
    flow.grant(*flow.commands("--dead-letter-topic", dlq))
    flow.produce(["a", "large", "b"], partition=0)
    run_available(spark_eos_session, flow, _inflated, dead_letter_topic=dlq)
    assert sorted(flow.values()) == ["a", "b"]
    assert [m.value() for m in flow.written(dlq)] == [b"large"]
