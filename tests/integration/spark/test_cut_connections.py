"""Queries whose connections are cut in the middle of a transaction's requests."""

from typing import Any

import pytest
from kafka.protocol.producer import EndTxnRequest
from pyspark.sql import SparkSession

from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from support import proxy_faults as faults
from support.flow import Flow
from support.proxy import KafkaProxy
from support.queries import run_available


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_class", "fault"),
    [
        (TxnOffsetCommitRequest, faults.CutAfter()),
        (EndTxnRequest, faults.CutBefore()),
        (EndTxnRequest, faults.CutAfter()),
    ],
    ids=["TxnOffsetCommit", "before EndTxn", "after EndTxn"],
)
def test_a_query_whose_connection_is_cut_writes_every_row_once(
    request_class: Any,
    fault: faults.Fault,
    proxied_flow: Flow,
    proxy: KafkaProxy,
    spark_eos_session: SparkSession,
) -> None:
    proxied_flow.produce(range(20))
    cut = proxy.on(request_class, fault)
    reports = run_available(spark_eos_session, proxied_flow)
    assert len(cut.hits) == 1
    assert sum(report.rows_written for report in reports) == 20
    assert sorted(map(int, proxied_flow.values())) == list(range(20))
    assert proxied_flow.committed() == {0: 10, 1: 10}
    assert proxied_flow.open_transactions() == []
