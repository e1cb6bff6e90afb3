"""A worker looks topics up as rarely as possible, and again after a failure."""

import json
from typing import NoReturn

import pytest

from spark_eos._exactly_once import task
from spark_eos._exactly_once.task import write_task
from spark_eos._exactly_once.transaction import TransactionWriter
from spark_eos._kafka.topic_cache import TopicCache
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos.errors import AuthorizationError
from support.flow import Flow
from support.versions import needs_topic_ids
from support.writing import plan_of, requests_naming, row_batch, rows, sent_requests, writer


# By name, topics are looked up once more before each commit.
@pytest.mark.slow
@needs_topic_ids
def test_a_worker_looks_repeatedly_committed_topics_up_once(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = sent_requests(monkeypatch)
    with writer(flow) as first:
        driver = requests_naming(requests, flow.source)
        producer, settings, plan = first._producer, first._settings, plan_of(first)
        for offset in range(0, 16, 2):
            # A task of its own each time, as in batch after batch.
            writing = TransactionWriter(producer, settings, plan)
            for part in (offset, offset + 1):
                writing.add(rows(flow, 0, part))
            writing.add(rows(flow, 1, offset))
            writing.commit()
        assert requests_naming(requests, flow.target) == 1
        assert requests_naming(requests, flow.source) == driver
        # After a failure nothing is taken for known.
        writing.add(rows(flow, 0, 16))
        writing.abort()
        writing.add(rows(flow, 0, 16))
        writing.commit()
        assert requests_naming(requests, flow.target) == 2
    assert len(flow.values()) == 25


def test_of_several_missing_topics_the_first_rows_is_named(flow: Flow) -> None:
    with writer(flow) as writing:
        part = rows(flow, 0, 3, 4, topic=["z/", "a/"])
        with pytest.raises(TransactionError, match=r"offset 3.*z/"):
            writing.add(part)


def test_rows_for_a_forbidden_topic_are_named(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object, **_named: object) -> NoReturn:
        raise AuthorizationError("topic 'ordrs': 29 TOPIC_AUTHORIZATION_FAILED", 29, ())

    with writer(flow) as writing:
        monkeypatch.setattr(TopicCache, "get", refused)
        with pytest.raises(TransactionError, match=rf"{flow.source}-0 offset 3.*ordrs"):
            writing.add(rows(flow, 0, 3, topic=["ordrs"]))


@pytest.mark.slow
def test_a_later_attempt_discards_what_workers_keep(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = sent_requests(monkeypatch)
    monkeypatch.setattr(task, "_producers", {})
    used: list[tuple[int, int]] = []
    with writer(flow) as writing:
        for number, discard_producer in enumerate((False, False, True)):
            run = write_task(writing._settings, plan_of(writing), discard_producer=discard_producer)
            (report,) = run(iter([row_batch(flow, 0, number)]))
            (text,) = report.column(0).to_pylist()
            assert [row["status"] for row in json.loads(text)] == ["written", "written"]
            (producer,) = task._producers.values()
            used.append((producer.identity.epoch, requests_naming(requests, flow.target)))
        producer.close()
    first, second, third = used
    assert first == second
    assert third[0] > second[0]
    assert third[1] > second[1]
    assert sorted(flow.values()) == ["0/0", "0/1", "0/2"]
