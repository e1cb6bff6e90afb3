"""Which of a worker process's producers a task gets."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from spark_eos._client.settings import ClientSettings
from spark_eos._exactly_once.task import worker_producer
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.writer_settings import WriterSettings
from support.writing import close_producers

_SETTINGS = WriterSettings(
    client=ClientSettings({"bootstrap.servers": "127.0.0.1:1"}), group_id="group", topic="t"
)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    close_producers()
    yield
    close_producers()


def test_a_query_keeps_its_producer_while_its_settings_stay() -> None:
    first = worker_producer(_SETTINGS)
    assert worker_producer(replace(_SETTINGS)) is first
    # Its target has changed, say: what was made for the old one would write there.
    second = worker_producer(replace(_SETTINGS, topic="other"))
    assert second is not first
    assert second.settings.topic == "other"
    assert worker_producer(replace(_SETTINGS, topic="other")) is second


def test_a_process_keeps_the_producers_of_four_queries() -> None:
    queries = [replace(_SETTINGS, group_id=f"group-{number}") for number in range(5)]
    first, *others = map(worker_producer, queries)
    assert [worker_producer(query) for query in queries[1:]] == others
    assert worker_producer(queries[0]) is not first


def test_a_producer_that_is_not_open_may_be_the_next_time() -> None:
    producer = worker_producer(_SETTINGS)
    for use in (lambda: producer.identity, lambda: producer.records):
        with pytest.raises(TransactionError) as raised:
            use()
        assert raised.value.again
