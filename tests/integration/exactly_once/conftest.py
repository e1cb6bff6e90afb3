"""Queries without Spark, in each delivery."""

from collections.abc import Callable

import pytest

from support.flow import Flow
from support.mirroring import MirroredFlow, mirrored_query
from support.runs import Query, direct_query
from support.staged_runs import StagedQuery, staged_query


@pytest.fixture
def direct(flow: Flow) -> Query:
    """A query that writes its source's rows directly."""
    return direct_query(flow)


@pytest.fixture
def mirrored(mirrored_flow: MirroredFlow) -> Query:
    """A query whose source is in another cluster."""
    return mirrored_query(mirrored_flow)


@pytest.fixture
def staged(flow: Flow) -> StagedQuery:
    """A query that stages its batches, each in two files."""
    return staged_query(flow)


@pytest.fixture
def query_of(request: pytest.FixtureRequest) -> Callable[[str], Query]:
    """Returns the query of a delivery; flows that are not asked for are not made."""
    return request.getfixturevalue
