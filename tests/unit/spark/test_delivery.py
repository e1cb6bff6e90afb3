"""The road of a run: the stream's own, or staged as its checkpoint was begun."""

from types import SimpleNamespace
from typing import Any

import pytest

from spark_eos._driver.checkpoint_note import DIRECT, MIRRORED, STAGED, Note
from spark_eos._spark.batches import DELIVERIES
from spark_eos._spark.delivery import AUTO, delivery_of_run
from spark_eos.errors import UnsupportedPipelineError


def _road(stream: str, noted: str | None, wanted: str = AUTO, refusal: str = "") -> str:
    note = Note() if noted is None else Note("group", delivery=noted)
    runtime: Any = SimpleNamespace(offset_log=SimpleNamespace(note=lambda: note))

    def check_first() -> None:
        if refusal:
            raise UnsupportedPipelineError(refusal)

    fallback = DELIVERIES[STAGED] if wanted == AUTO else None
    return delivery_of_run(DELIVERIES[stream], fallback, runtime, check_first).name


@pytest.mark.parametrize("road", [DIRECT, MIRRORED])
def test_a_checkpoint_that_was_staged_goes_on_staged(road: str) -> None:
    assert _road(road, STAGED) == STAGED
    assert _road(road, STAGED, wanted=road) == road
    assert _road(road, road, refusal="it shuffles") == road


@pytest.mark.parametrize("road", [DIRECT, MIRRORED])
def test_the_first_batch_decides_for_an_empty_checkpoint(road: str) -> None:
    assert _road(road, None) == road
    assert _road(road, None, refusal="it shuffles") == STAGED


@pytest.mark.parametrize(("road", "noted"), [(DIRECT, MIRRORED), (MIRRORED, DIRECT)])
def test_the_checkpoint_does_not_choose_the_cluster(road: str, noted: str) -> None:
    # What is read is source_kafka's, whatever the checkpoint says: the run refuses that.
    assert _road(road, noted) == road
