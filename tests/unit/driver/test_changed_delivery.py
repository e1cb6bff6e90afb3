"""What a query is told that would be written by another delivery than it was begun with."""

import pytest

from spark_eos._driver.changed_delivery import changed_delivery
from spark_eos._driver.checkpoint_marker import DIRECT, MIRRORED, STAGED

_SHUFFLE = "the query holds a shuffle (Exchange in its plan)"


@pytest.mark.parametrize(
    ("noted", "wanted", "why", "cure"),
    [
        # Setting delivery='direct' would help none that the stream does not let be direct.
        (DIRECT, STAGED, _SHUFFLE, "change the query back, so that its delivery can be 'direct';"),
        (DIRECT, STAGED, "", "set delivery='direct';"),
        (DIRECT, MIRRORED, "", "set delivery='direct', without source_kafka;"),
        (MIRRORED, DIRECT, "", "set delivery='mirrored', with source_kafka;"),
        (MIRRORED, STAGED, "", "set delivery='mirrored', with source_kafka;"),
        (MIRRORED, STAGED, _SHUFFLE, "change the query back, so that its delivery can be 'mir"),
        (STAGED, DIRECT, "", "set delivery='staged', with the checkpoint it had;"),
        (STAGED, MIRRORED, "", "set delivery='staged', with the checkpoint it had;"),
    ],
)
def test_the_cure_is_one_that_helps(noted: str, wanted: str, why: str, cure: str) -> None:
    text = str(changed_delivery(noted, wanted, why))
    assert cure in text
    assert text.count("set delivery=") == cure.count("set delivery=")
    assert (f", since {why}. " in text) == bool(why)
