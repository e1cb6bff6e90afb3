"""Fixtures of the data source's tests."""

from collections.abc import Iterator

import pytest

from support.flow import Flow
from support.keeping import Keeping, keeping


@pytest.fixture
def kept(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeping]:
    """A keeper without Spark, of a query between two topics."""
    with keeping(flow, monkeypatch) as found:
        yield found
