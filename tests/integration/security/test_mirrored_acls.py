"""The ACLs that a principal needs to mirror another cluster's topics."""

import pytest

from spark_eos.errors import AuthorizationError
from support.granting_mirrored import GuardedMirror
from support.mirroring import mirrored_run


@pytest.fixture
def flow(guarded_mirror: GuardedMirror) -> GuardedMirror:
    """The same, with the source on another broker."""
    return guarded_mirror


def test_just_the_acls_printed_are_enough(flow: GuardedMirror) -> None:
    commands = flow.grant_all()
    assert {
        "Read source",
        "Write target",
        "Read progress",
        "Create progress",
        "Alter progress",
    } <= {*commands}
    with mirrored_run(flow) as runs:
        runs.batch(3, 4)
        flow.other.add_partitions(flow.source, 4)
        runs.batch(3, 4, 5, 6)
    assert flow.committed() == {0: 3, 1: 4, 2: 5, 3: 6}
    # With its partitions in place, the topic needs neither to be created nor altered.
    with (
        flow.without(commands["Create progress"]),
        flow.without(commands["Alter progress"]),
        mirrored_run(flow) as runs,
    ):
        runs.batch(4, 5, 6, 7)
    assert flow.committed() == {0: 4, 1: 5, 2: 6, 3: 7}


def test_without_alter(flow: GuardedMirror) -> None:
    commands = flow.grant_all()
    with mirrored_run(flow) as runs:
        runs.batch(3, 4)
        flow.other.add_partitions(flow.source, 3)
        with (
            flow.without(commands["Alter progress"]),
            pytest.raises(AuthorizationError) as refusal,
        ):
            runs.batch(3, 4, 5)
    text = str(refusal.value)
    assert f"lacks Alter on topic '{flow.progress}'" in text
    tool = f"kafka-topics.sh --bootstrap-server {flow.kafka['bootstrap.servers']}"
    assert f"{tool} --command-config FILE --alter" in text
    assert f"--topic {flow.progress} --partitions 3" in text


@pytest.mark.slow
def test_without_read_of_the_source(flow: GuardedMirror) -> None:
    commands = flow.grant_all()
    with (
        flow.without(commands["Read source"]),
        mirrored_run(flow) as runs,
        pytest.raises(AuthorizationError, match=f"lacks Read on topic '{flow.source}'"),
    ):
        runs.batch(3, 4)
    assert flow.values() == []
