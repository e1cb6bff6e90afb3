"""A group's transactional ids match only its own pattern."""

import re

from hypothesis import given
from hypothesis import strategies as st

from spark_eos._kafka.transactional_ids import id_pattern, id_stem


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_a_groups_ids_match_its_own_pattern_only(one: str, other: str) -> None:
    own = f"{id_stem('spark-eos', one)}/node-1/0"
    assert re.fullmatch(id_pattern("spark-eos", one), own)
    if one != other:
        assert not re.fullmatch(id_pattern("spark-eos", other), own)
    assert not re.fullmatch(id_pattern("spark-eos", one), f"{own}/0")
