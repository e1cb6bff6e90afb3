"""The options of the progress topic check themselves."""

from typing import Any

import pytest

from spark_eos.errors import ConfigurationError
from spark_eos.options import ProgressTopic


def test_what_is_allowed() -> None:
    assert ProgressTopic() == ProgressTopic("spark-eos-progress", 33, None)
    assert ProgressTopic("A.b_c-9", 2, 1).replicas == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "progress_topic must be a non-empty string, not ''"),
        ({"name": "a" * 201}, "progress_topic is longer than 200 characters"),
        ({"name": "a*"}, "progress_topic='a\\*' contains a \\*"),
        ({"name": "a b"}, "progress_topic='a b' is no name of a topic"),
        ({"name": "a\n"}, "progress_topic='a\\\\n' is no name of a topic"),
        ({"name": ".."}, "progress_topic='..' is no name of a topic"),
        ({"partitions": 1}, r"progress_topic\.partitions must be an integer of at least 2, not 1"),
        ({"partitions": 2**31}, r"progress_topic\.partitions must be at most 2147483647"),
        ({"replicas": 0}, r"progress_topic\.replicas must be an integer of at least 1, not 0"),
        ({"replicas": 2**15}, r"progress_topic\.replicas must be at most 32767"),
    ],
)
def test_what_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{words}"):
        ProgressTopic(**options)
