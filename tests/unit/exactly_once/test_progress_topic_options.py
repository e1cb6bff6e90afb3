"""The options of the progress topic are validated."""

from typing import Any

import pytest

from spark_eos.errors import ConfigurationError
from spark_eos.options import ProgressTopic
from support.messages import says


def test_what_is_allowed() -> None:
    assert ProgressTopic() == ProgressTopic("spark-eos-progress", 33, None)
    assert ProgressTopic("A.b_c-9", 2, 1).replicas == 1


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "a" * 250},
        {"name": "a*"},
        {"name": "a b"},
        {"name": "a\n"},
        {"name": ".."},
        {"partitions": 1},
        {"partitions": 2**31},
        {"replicas": 0},
        {"replicas": 2**15},
    ],
    ids=str,
)
def test_what_is_refused(options: dict[str, Any]) -> None:
    with says(ConfigurationError):
        ProgressTopic(**options)
