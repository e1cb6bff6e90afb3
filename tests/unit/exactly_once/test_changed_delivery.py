"""Changes of delivery that the checkpoint's marker forbids, and their errors."""

from itertools import product

import pytest

from spark_eos._checkpoint.marker import DIRECT, MIRRORED, STAGED, Marker
from spark_eos._client.commands import Group
from spark_eos._delivery.ownership import (
    changed_delivery,
    check_marker,
    may_become_direct,
)
from spark_eos._delivery.staged_checks import StagedChecks
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.acls import Principal
from spark_eos.errors import CheckpointError

_DELIVERIES = (DIRECT, MIRRORED, STAGED)
_SHUFFLE = "the query has a shuffle (Exchange in its plan)"


@pytest.mark.parametrize(
    ("noted", "wanted", "why", "cure"),
    [
        # Setting delivery='direct' would not help, because the stream can't be direct.
        (DIRECT, STAGED, _SHUFFLE, "change the query back, so that its delivery can be 'direct';"),
        (DIRECT, STAGED, "", "set delivery='direct', and no source_kafka;"),
        (DIRECT, MIRRORED, "", "set delivery='direct', and no source_kafka;"),
        (MIRRORED, DIRECT, "", "set delivery='mirrored', with source_kafka;"),
        (MIRRORED, STAGED, "", "set delivery='mirrored', with source_kafka;"),
        (MIRRORED, STAGED, _SHUFFLE, "change the query back, so that its delivery can be 'mir"),
        (STAGED, DIRECT, "", "set delivery='staged', with the checkpoint it had;"),
        (STAGED, MIRRORED, "", "set delivery='staged', with the checkpoint it had;"),
    ],
)
def test_the_suggested_remedy_helps(noted: str, wanted: str, why: str, cure: str) -> None:
    text = str(changed_delivery(noted, wanted, why))
    assert cure in text
    assert text.count("set delivery=") == cure.count("set delivery=")
    assert (f", since {why}. " in text) == bool(why)


def test_another_progress_topic_before_the_first_batch_is_named() -> None:
    known = KnownPartitions().including([TopicPartition("a", 0), TopicPartition("a", 1)], {})
    group = Group("group", Principal(None, "kafka:9092"))
    StagedChecks(group, "a").check_topic(known, "")
    with pytest.raises(CheckpointError, match=r"if 'a' is the progress topic .*progress_topic='a'"):
        StagedChecks(group, "b").check_topic(known, "")


@pytest.mark.parametrize(("noted", "wanted"), [*product(_DELIVERIES, repeat=2)])
def test_every_change_is_refused(noted: str, wanted: str) -> None:
    check_marker(Marker(None, delivery=noted), wanted)
    marker = Marker("group", delivery=noted)
    if noted == wanted:
        check_marker(marker, wanted)
    else:
        with pytest.raises(CheckpointError, match=f"delivery='{noted}'"):
            check_marker(marker, wanted)


def test_only_one_change_depends_on_the_groups_offsets() -> None:
    whose = ("group", "a", "z", None)
    cases = product(whose, _DELIVERIES, _DELIVERIES, (0, 1))
    assert [
        (group_id, noted, wanted, batch_id)
        for group_id, noted, wanted, batch_id in cases
        if may_become_direct(Marker(group_id, delivery=noted), "group", wanted, batch_id)
    ] == [("group", STAGED, DIRECT, 0)]
