"""The consumers of Spark's source use the sink's client settings."""

from kafka.protocol.consumer import FetchRequest
from pyspark.sql import SparkSession

from support.flow import Flow
from support.proxy import KafkaProxy
from support.queries import run_available


def test_settings_of_consumers_are_in_the_fetch_requests(
    proxied_flow: Flow, proxy: KafkaProxy, spark_eos_session: SparkSession
) -> None:
    proxied_flow.produce(["a"])
    wanted = {
        "client.rack": "rack-1",
        "fetch.max.bytes": 2_000_000,
        "fetch.message.max.bytes": 300_000,
        "fetch.min.bytes": 2,
        "fetch.wait.max.ms": 7,
        "client.id": "orders",
    }
    run_available(
        spark_eos_session,
        proxied_flow,
        kafka={**proxied_flow.kafka, **wanted},
        read={"subscribe": [proxied_flow.source]},
    )
    asked = [r for r in proxy.requests if r.api_key == FetchRequest.API_KEY]
    assert {request.client_id for request in asked} == {"orders"}
    for message in (request.message() for request in asked):
        assert message.rack_id == "rack-1"
        assert (message.max_bytes, message.min_bytes) == (2_000_000, 2)
        assert message.max_wait_ms == 7
        limits = {p.partition_max_bytes for topic in message.topics for p in topic.partitions}
        assert limits <= {300_000}
    assert proxied_flow.values() == ["a"]
