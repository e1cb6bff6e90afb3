"""Fixtures of spark-eos' own tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_eos.testing import EmbeddedKafka
from support.flow import Flow

pytest_plugins = ["pytester"]


@pytest.fixture
def new_flow(embedded_kafka: EmbeddedKafka, tmp_path: Path) -> Callable[..., Flow]:
    """Makes topics, a group and a checkpoint of the test's own."""

    def make(**options: Any) -> Flow:
        workers = tmp_path / "workers"
        return Flow(embedded_kafka, str(tmp_path / "checkpoint"), str(workers), **options)

    return make


@pytest.fixture
def flow(new_flow: Callable[..., Flow]) -> Flow:
    """Topics of two partitions, a group and a checkpoint of the test's own."""
    return new_flow()
