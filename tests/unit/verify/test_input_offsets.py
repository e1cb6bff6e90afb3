"""An offset's text names a source partition only if it is in spark-eos' format."""

import uuid

from spark_eos.verify.input_offsets import Source, source_of


def test_a_source_is_read() -> None:
    text = '{"spark-eos":2,"source":["9dZ","orders","00000000000000000000000000000007",3]}'
    assert source_of(text) == Source("9dZ", "orders", uuid.UUID(int=7), 3)


def test_any_other_text_names_none() -> None:
    assert source_of("an operator's") is None
    assert source_of("[" * 4_000) is None
