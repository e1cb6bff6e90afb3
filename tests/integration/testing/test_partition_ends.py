"""Waiting for a topic's end offsets leaves nothing behind."""

import gc
import uuid

from confluent_kafka.admin import AdminClient

from spark_eos.testing import EmbeddedKafka
from spark_eos.testing.records import settled_ends


def _clients() -> int:
    return sum(type(found) is AdminClient for found in gc.get_objects())


def test_no_client_is_left_to_the_garbage_collector(embedded_kafka: EmbeddedKafka) -> None:
    """Once the broker has stopped, it would report on stderr repeatedly that the broker is gone."""
    topic = f"ends-{uuid.uuid4().hex}"
    embedded_kafka.create_topic(topic, 2)
    gc.collect()
    before = _clients()
    assert before > 0, "not even that of the broker is seen"
    gc.disable()
    try:
        ends = settled_ends(
            {"bootstrap.servers": embedded_kafka.bootstrap_servers}, topic, [0, 1], 30
        )
        assert ends == ({0: 0, 1: 0}, {0: 0, 1: 0})
        assert _clients() == before
    finally:
        gc.enable()
