"""Sessions of both APIs."""

import pytest

from support.apis import Queries


@pytest.fixture(
    scope="module", params=["foreachBatch", pytest.param("connect", marks=pytest.mark.slow)]
)
def queries(request: pytest.FixtureRequest) -> Queries:
    """Each API in turn, on a session that the tests share."""
    if request.param == "connect":
        found: Queries = request.getfixturevalue("connect_service").queries
        return found
    request.getfixturevalue("spark_eos_session")
    return Queries()
