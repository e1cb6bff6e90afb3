"""The delivery of a run: the stream's own, or staged if the checkpoint began that way."""

from types import SimpleNamespace
from typing import Any

import pytest

from spark_eos._checkpoint.marker import DIRECT, MIRRORED, STAGED, Marker
from spark_eos._delivery.choice import AUTO, DELIVERIES, delivery_of_run
from spark_eos.errors import UnsupportedPipelineError


def _chosen(stream: str, noted: str | None, wanted: str = AUTO, refusal: str = "") -> str:
    marker = Marker() if noted is None else Marker("group", delivery=noted)

    def check_first() -> None:
        if refusal:
            raise UnsupportedPipelineError(refusal)

    fallback = DELIVERIES[STAGED] if wanted == AUTO else None
    settings = SimpleNamespace(group_id="group")
    query: Any = SimpleNamespace(
        delivery=DELIVERIES[stream],
        fallback=fallback,
        settings=settings,
        why="",
        forced=False,
        progress_topic=SimpleNamespace(name="progress"),
    )
    # A later batch than the first, after which a staged query stays staged.
    return delivery_of_run(query, marker, 1, None, check_first)[0].name  # type: ignore[arg-type]


@pytest.mark.parametrize("delivery", [DIRECT, MIRRORED])
def test_a_checkpoint_that_was_staged_goes_on_staged(delivery: str) -> None:
    assert _chosen(delivery, STAGED) == STAGED
    assert _chosen(delivery, STAGED, wanted=delivery) == delivery
    assert _chosen(delivery, delivery, refusal="it shuffles") == delivery


@pytest.mark.parametrize("delivery", [DIRECT, MIRRORED])
def test_the_first_batch_decides_for_an_empty_checkpoint(delivery: str) -> None:
    assert _chosen(delivery, None) == delivery
    assert _chosen(delivery, None, refusal="it shuffles") == STAGED


@pytest.mark.parametrize(("delivery", "noted"), [(DIRECT, MIRRORED), (MIRRORED, DIRECT)])
def test_the_checkpoint_does_not_choose_the_cluster(delivery: str, noted: str) -> None:
    # What is read is source_kafka's, whatever the checkpoint says: the run refuses that.
    assert _chosen(delivery, noted) == delivery
