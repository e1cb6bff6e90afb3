"""Options of the sink that are refused, with words that help."""

from typing import Any

import pytest

from spark_eos import ExactlyOnceSink, errors


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"group_id": " "}, "group_id"),
        ({"checkpoint_location": ""}, "checkpoint_location"),
        ({"max_members": 0}, "max_members"),
        ({"max_transaction_records": "many"}, "max_transaction_records"),
        ({"max_block_ms": 0}, "max_block_ms"),
        ({"metadata_max_idle_ms": -1}, "metadata_max_idle_ms"),
        (
            {"max_transaction_ms": 60_000},
            "max_transaction_ms=60000 must be below transaction_timeout_ms",
        ),
        ({"kafka": {}}, "bootstrap.servers"),
        ({"kafka": {"bootstrap.servers": "a:1", "transactional.id": "x"}}, "transactional_id_pre"),
        ({"kafka": {"bootstrap.servers": "a:1", "no.such.setting": "1"}}, "no.such.setting"),
        ({"kafka": {"bootstrap.servers": "a:1", "linger.ms": "soon"}}, "linger.ms"),
        ({"kafka": {"bootstrap.servers": "a:1", "sasl.password": "s"}}, "PLAINTEXT"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options(options: dict[str, Any], words: str) -> None:
    given = {
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "group_id": "g",
        "checkpoint_location": "c",
        **options,
    }
    with pytest.raises(errors.ConfigurationError, match=words):
        ExactlyOnceSink(**given)
