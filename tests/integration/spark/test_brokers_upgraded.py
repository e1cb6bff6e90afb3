"""A cluster's brokers are upgraded and downgraded one by one while a query keeps running."""

from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from spark_eos.testing import EmbeddedKafka
from spark_eos.verify import Verdict
from support.flow import Flow
from support.loading import loaded
from support.planting import look
from support.queries import QueryProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

_OLDER, _NEWER = "kafka-4.3.1", "kafka-4.4.0"


def _written(query: QueryProcess, least: int) -> list[int]:
    """Waits until the query has reported more batches; returns the versions of its commits."""
    before = len(query.reports())
    query.until(lambda: len(query.reports()) >= before + least, "further batches")
    return [report["offset_commit_version"] for report in query.reports()[before:]]


def _restarted(kafka: EmbeddedKafka, jar_set: str, query: QueryProcess) -> None:
    for node in kafka.nodes:
        node.stop()
        node.jar_set = jar_set
        node.start()
        kafka.wait_until_in_sync()
        _written(query, 2)


def _finalize_features(kafka: EmbeddedKafka) -> dict[str, int]:
    """Raises all features to the newest level that the brokers support."""
    admin = KafkaAdminClient(bootstrap_servers=kafka.direct_servers)
    try:
        found = admin.describe_features()
        higher = {
            name: one["supported"][1]
            for name, one in found.items()
            if "finalized" in one and one["finalized"][1] < one["supported"][1]
        }
        answer = admin.update_features(higher)
        assert set(answer.values()) == {"OK"}, answer
    finally:
        admin.close()
    return higher


def test_a_query_goes_on(tmp_path: Path) -> None:
    with EmbeddedKafka(nodes=3, jar_set=_OLDER) as kafka:
        flow = Flow(kafka, str(tmp_path / "checkpoint"), str(tmp_path / "workers"))
        log = tmp_path / "query.log"
        with (
            loaded(flow) as produced,
            QueryProcess(flow, log, available_now=False) as query,
        ):
            assert set(_written(query, 3)) == {5}
            for jar_set, version in ((_NEWER, 6), (_OLDER, 5), (_NEWER, 6)):
                _restarted(kafka, jar_set, query)
                assert _written(query, 3)[-1] == version
            assert "metadata.version" in _finalize_features(kafka)
            assert _written(query, 3)[-1] == 6
        with QueryProcess(flow, tmp_path / "last.log") as last:
            assert last.wait() == 0, last.output()[-6000:]
        found = look(flow, key=True, complete=True, timeout=30)
        assert found.verdict is Verdict.SOUND, found.anomalies
        written = sorted(int(message.key() or b"") for message in flow.written())
        assert written == list(range(produced[0]))
