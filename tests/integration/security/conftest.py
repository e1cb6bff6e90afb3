"""Brokers that allow only what ACLs grant, shared by the whole test run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_eos.testing import EmbeddedKafka
from support.granting import Guarded, guarded_kafka
from support.granting_mirrored import GuardedMirror


@pytest.fixture(scope="session")
def guarded_broker() -> Iterator[EmbeddedKafka]:
    """A guarded broker."""
    with guarded_kafka() as broker:
        yield broker


@pytest.fixture(scope="session")
def other_guarded_broker() -> Iterator[EmbeddedKafka]:
    """A second guarded cluster."""
    with guarded_kafka() as broker:
        yield broker


@pytest.fixture
def flow(guarded_broker: EmbeddedKafka, tmp_path: Path) -> Guarded:
    """Topics, a group and a principal without any permissions."""
    return Guarded(guarded_broker, str(tmp_path / "checkpoint"), str(tmp_path / "workers"))


@pytest.fixture
def guarded_mirror(
    guarded_broker: EmbeddedKafka, other_guarded_broker: EmbeddedKafka, tmp_path: Path
) -> GuardedMirror:
    """The same as `flow`, with the source on the other broker."""
    directories = (str(tmp_path / "checkpoint"), str(tmp_path / "workers"))
    return GuardedMirror(guarded_broker, *directories, other=other_guarded_broker)
