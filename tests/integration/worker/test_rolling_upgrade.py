"""A cluster with brokers of different versions, or that is upgraded while a query runs.

The proxy lowers the versions that the broker reports on some connections.
"""

from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest

from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from spark_eos._worker.task_report import Counters
from support import proxy_faults as faults
from support.flow import Flow
from support.proxied_worker import ProxiedWorker, answered
from support.proxy import KafkaProxy
from support.runs import running
from support.versions import needs_topic_ids
from support.writing import rows, writer

pytestmark = needs_topic_ids

_DESCRIBE_LOG_DIRS = 35


def _older(proxy: KafkaProxy, times: int | None = None) -> None:
    """From now on, this many of spark-eos' own connections lead to a Kafka 4.2 broker."""
    spoken = {TxnOffsetCommitRequest.API_KEY: 5, _DESCRIBE_LOG_DIRS: 4}

    def lower(_request: Any, answer: Any) -> None:
        for api in answer.api_keys:
            api.max_version = min(api.max_version, spoken.get(api.api_key, api.max_version))

    proxy.on(
        ApiVersionsRequest,
        faults.Rewrite(lower),
        times=times,
        where=lambda message: message.client_software_name == "spark-eos",
    )


def _sent(proxy: KafkaProxy) -> list[int]:
    key = TxnOffsetCommitRequest.API_KEY
    return [request.version for request in proxy.requests if request.api_key == key]


def test_the_first_broker_met_is_older_than_the_coordinator(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    with writer(proxied_flow) as writing:
        _older(proxy, times=1)
        writing.add(rows(proxied_flow, 0, 0, 1))
        writing.commit()
        assert _sent(proxy) == [6]
        assert proxied_flow.committed() == {0: 2}


def test_the_coordinator_is_older_and_then_upgraded(
    worker: ProxiedWorker, proxy: KafkaProxy
) -> None:
    proxy.reset()
    _older(proxy)
    proxy.cut()
    worker.add_and_commit()
    assert _sent(proxy) == [5]
    proxy.reset()
    proxy.cut()
    worker.add_and_commit()
    assert _sent(proxy) == [6]


def test_the_coordinator_moves_to_an_older_broker_before_a_retry(
    worker: ProxiedWorker, proxy: KafkaProxy
) -> None:
    assert _sent(proxy) == [6]
    proxy.reset()
    worker.writing.counters = Counters()
    worker.on_offsets(faults.CutBefore())
    _older(proxy)
    worker.add_and_commit()
    assert _sent(proxy) == [6, 5]
    assert worker.writing.counters.offset_commit_version == 5
    proxy.reset()
    # And back again.
    worker.on_offsets(faults.CutBefore())
    worker.add_and_commit()
    assert _sent(proxy) == [5, 6]


def test_a_batch_reports_the_lowest_version_sent(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    def downgrade() -> None:
        _older(proxy)
        proxy.cut()

    with running(proxied_flow) as runs:
        assert runs.batch(2, 0).offset_commit_version == 6
        # The first attempt's offsets go by id and are rejected, the second attempt's go by name.
        proxy.on(TxnOffsetCommitRequest, answered(113))
        report = runs.batch(4, 0, while_planned=downgrade, in_attempt=2)
        assert (report.attempts, report.rows_written) == (2, 2)
        assert _sent(proxy) == [6, 6, 5]
        assert report.offset_commit_version == 5
        # None is sent: what the run found when it started.
        assert runs.batch(5, 0, without_output=1).offset_commit_version == 6


def test_a_run_begun_on_an_older_broker_sends_the_newer_version(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    def upgrade() -> None:
        proxy.reset()
        proxy.cut()

    with running(proxied_flow) as runs:
        _older(proxy)
        assert runs.batch(1, 0, without_output=1).offset_commit_version == 5
        assert runs.batch(3, 0, while_planned=upgrade).offset_commit_version == 6
        assert proxied_flow.committed() == {0: 3, 1: 0}
