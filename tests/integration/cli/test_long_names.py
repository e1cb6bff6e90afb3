"""Topic names of 249 characters, the longest that Kafka allows, and names derived from them."""

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from support.dead_letters import create_dead_letter_topic, dead_letters, replay, write_dead_letters
from support.flow import Flow
from support.mirroring import MirroredFlow, mirrored_run
from support.operating import document, run
from support.runs import Runs, running


def _write(flow: Flow, runs: Runs) -> None:
    runs.batch(3, 3)
    assert len(flow.values()) == 6
    assert document(flow, "--target", flow.target)["open_transactions"] == []
    assert run("abort", flow, "--yes").exit_code == 0


def test_a_direct_query(new_flow: Callable[..., Flow]) -> None:
    flow = new_flow(name="n" * 245)
    assert len(flow.target) == 249
    with running(flow, dead_letter_topic=create_dead_letter_topic(flow)) as runs:
        _write(flow, runs)


def test_a_mirrored_query(new_mirrored_flow: Callable[..., MirroredFlow]) -> None:
    flow = new_mirrored_flow(name="n" * 240)
    assert len(flow.progress) == 249
    with mirrored_run(flow) as runs:
        _write(flow, runs)


@pytest.mark.slow
def test_dead_letters(new_flow: Callable[..., Flow], spark_eos_session: SparkSession) -> None:
    assert spark_eos_session is not None
    flow = new_flow(name="m" * 245)
    create_dead_letter_topic(flow)
    write_dead_letters(flow, [7])
    assert flow.source in "".join(dead_letters(flow, "list").stdout.split())
    assert replay(flow).exit_code == 0
    assert flow.values(flow.source) == ["value 7"]
