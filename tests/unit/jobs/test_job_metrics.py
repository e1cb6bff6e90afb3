"""A job's metrics: with a listener in classic Spark, and sent to Spark Connect without one."""

import pickle
from types import SimpleNamespace
from typing import Any

from spark_eos.jobs.job_metrics import JobMetrics
from spark_eos.observability.listener import BatchListener
from support.reports import REPORT


def test_they_are_sent_without_the_listener() -> None:
    listeners: list[Any] = []
    spark: Any = SimpleNamespace(streams=SimpleNamespace(addListener=listeners.append))
    metrics = JobMetrics(0, "127.0.0.1")
    metrics.listen(spark)
    assert [type(one) for one in listeners] == [BatchListener]
    sent = pickle.loads(pickle.dumps(metrics))  # noqa: S301 - as Spark Connect does
    sent(REPORT)
    sent.on_query(SimpleNamespace(id="1"), "orders")
