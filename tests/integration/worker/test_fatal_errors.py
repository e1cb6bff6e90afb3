"""A producer's fatal error ends the transaction by an error that names it."""

from confluent_kafka import KafkaError

from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.transactions import fence_producer
from support.flow import Flow
from support.members import deadline, started
from support.writing import refused, rows, transactions


def test_a_producer_that_is_fenced_with_many_records_on_their_way(flow: Flow) -> None:
    # So that none of them is sent before the commit waits for them.
    client = ClientSettings({**flow.kafka, "linger.ms": 900})
    with started(flow) as membership, transactions(flow, membership, client=client) as writing:
        for _attempt in range(5):
            writing.add(rows(flow, 0, *range(3_000)))
            with flow.connections() as connections:
                name = writing._producer.identity.transactional_id
                fence_producer(connections, name, 60_000, deadline())
            failure = refused(flow, writing, KafkaError(KafkaError._FENCED).name())
            assert (failure.again, failure.too_slow) == (True, False)
            writing.abort()
            writing._producer.drop()
