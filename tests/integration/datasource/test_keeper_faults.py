"""What a data source's next start finds: offsets that are lost, transactions that are open."""

from contextlib import closing
from typing import Any

import pytest
from kafka.protocol.producer import ProduceRequest

from spark_eos import errors
from spark_eos.worker.producer import TransactionalProducer
from spark_eos.worker.transaction import Transactions
from support import groups
from support.data_sources import until_kept_no_more
from support.flow import Flow
from support.keeping import Keeping, keeping
from support.proxy import KafkaProxy
from support.proxy_faults import DropRequest
from support.queries import until
from support.runs import values_up_to
from support.writing import rows


def _ended_and_lost(kept: Keeping, partition: int) -> None:
    """Ends the keeper, as Spark's abort does; then an offset expires."""
    kept.client.abort()
    until_kept_no_more(kept.flow)
    place = (kept.flow.source, partition)
    groups.delete_offsets(kept.flow.bootstrap_servers, kept.flow.group_id, [place])


@pytest.mark.parametrize("before", ["not begun", "begun and written"])
def test_no_offset_of_a_batch_with_records_is_restored(kept: Keeping, before: str) -> None:
    kept.batch(0, 5, 5)
    kept.begin(1, 9, 9)
    written = before == "begun and written"
    if written:
        kept.written(kept.plan(), 5, 9)
    _ended_and_lost(kept, 1)
    # Whether any of its rows are written, the keeper can't tell.
    with pytest.raises(errors.OffsetsLostError, match="batch 1, from 5 to 8, was begun"):
        kept.plan()
    assert sorted(kept.flow.values()) == (values_up_to(5, 9) if written else values_up_to(5, 5))
    assert 1 not in kept.flow.committed()


def test_an_offset_of_a_batch_without_records_is_restored(kept: Keeping) -> None:
    kept.batch(0, 5, 5)
    kept.begin(1, 9, 5)
    kept.plan()
    _ended_and_lost(kept, 1)
    assert kept.batch(1, 9, 5).rows_written == 4
    assert sorted(kept.flow.values()) == values_up_to(9, 5)
    assert kept.flow.committed() == {0: 9, 1: 5}


def test_abort_ends_the_transactions_that_its_tasks_have_open(kept: Keeping) -> None:
    # Its timeout does not end it while this is waited for.
    kept.settings = {"transaction_timeout_ms": 600_000}
    kept.begin(0, 2, 2)
    planned = kept.plan()
    settings = kept.writer_settings
    with closing(TransactionalProducer(settings)) as producer:
        Transactions(producer, settings, planned.plan).add(rows(kept.flow, 0, 0, 1))
        until(kept.flow.open_transactions, lambda: "an open transaction")
        kept.client.abort()
        until(lambda: not kept.flow.open_transactions(), lambda: "its end", 120)
    assert kept.flow.values() == []


def _is_large(request: Any) -> bool:
    partitions = [p for topic in request.topic_data for p in topic.partition_data]
    return sum(len(p.records) for p in partitions) > 1_000


def test_a_transaction_that_takes_too_long_ends_the_query_with_what_to_set(
    proxied_flow: Flow, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.on(ProduceRequest, DropRequest(), times=None, where=_is_large)
    with keeping(proxied_flow, monkeypatch) as kept:
        kept.settings = {"transaction_timeout_ms": 1_000, "max_transaction_ms": 900}
        kept.begin(0, 500, 0)
        commit = kept.written(kept.plan(), 500)
        with pytest.raises(errors.WriteError) as failure:
            kept.client.commit(commit)
        reason = str(failure.value)
        assert f"the first is {kept.flow.source}-0: the transaction with 500 rows" in reason
        assert "longer than transaction_timeout_ms=1000" in reason
        assert (
            "lower max_transaction_records, max_transaction_bytes or max_transaction_ms" in reason
        )
        until_kept_no_more(kept.flow)
        proxy.reset()
        kept.settings = {}
        assert kept.batch(0, 500, 0).rows_written == 500
    assert sorted(proxied_flow.values()) == values_up_to(500, 0)
    assert proxied_flow.open_transactions() == []
