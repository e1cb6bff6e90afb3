"""A stream may not drop the errors of its bad rows unseen; texts are Spark 4.3's."""

import pytest

from spark_eos._spark import dead_letter_functions
from spark_eos._spark.kept_errors import ADDING_ERRORS, drops_errors
from spark_eos.schemas import rows

_READ = "~Project [key#2, value#3, source#7]"
_ADDS = "~MapInArrow Decoding(key#2, value#3, source#7)#8, [key#9, value#10, error#12], false"
_ENCODES = "~MapInArrow Encoding(key#9, value#20)#21, [key#22, value#23, error#24], false"


@pytest.mark.parametrize(
    ("lines", "drops"),
    [
        pytest.param(["~Project [key#9, value#10]", _ADDS], True, id="dropped"),
        pytest.param(
            ["~Project [key#9]", "~Project [key#9, error#12, 1 AS x#13]", _ADDS],
            True,
            id="dropped later",
        ),
        pytest.param(
            ["~Project [key#22, error#24]", _ENCODES, "~Project [key#9, value#20]", _ADDS],
            True,
            id="dropped before it is encoded",
        ),
        pytest.param(
            ["~Project [key#22]", _ENCODES.replace("value#20", "value#20, error#12"), _ADDS],
            True,
            id="dropped after it was encoded",
        ),
        pytest.param(
            ["~Aggregate [key#9], [key#9, count(1) AS value#14L]", _ADDS], True, id="a sum"
        ),
        pytest.param(
            ["~Aggregate [key#9], [key#9, count(error#12) AS value#14L]", _ADDS],
            False,
            id="a sum of errors",
        ),
        pytest.param(["~Project [key#2, error#3]", "~Union", _ADDS], False, id="in a union"),
        pytest.param(
            ["~Project [key#2, error#3]", "~Union", "~Project [key#9]", _ADDS],
            True,
            id="dropped in a union",
        ),
        pytest.param(["~Project [key#2]", "~Union", _ADDS], True, id="dropped after a union"),
        pytest.param(
            ["~Project [key#2]", "~Filter isnull(error#3)", "~Union", _ADDS],
            False,
            id="left out after a union",
        ),
        pytest.param(
            ["~Project [key#2]", "~Union", "~Filter isnull(error#12)", _ADDS],
            False,
            id="left out before a union",
        ),
        pytest.param(["~Project [key#9, error#12]", _ADDS], False, id="kept"),
        pytest.param([_ADDS], False, id="all kept"),
        pytest.param(["~Project [key#9]", "~Filter isnull(error#12)", _ADDS], False, id="left out"),
        pytest.param(
            ["~Project [coalesce(error#12, ) AS value#14]", _ADDS], False, id="made something of"
        ),
        pytest.param(
            ["~Project [a#1, b#2, ... 30 more fields]", _ADDS], True, id="dropped, though long"
        ),
        pytest.param(
            ["~Project [error#4]", "~Project [a#1, ... 30 more fields]", _ADDS],
            False,
            id="perhaps in what is not shown",
        ),
        pytest.param(
            ["~Project [key#9]", _ADDS.replace("Decoding", "own")], False, id="somebody else's"
        ),
        pytest.param(["~Project [key#9]", _ADDS.replace("error", "x")], False, id="without one"),
    ],
)
def test_an_error_is_kept_or_looked_at(lines: list[str], drops: bool) -> None:  # noqa: FBT001
    tree = [f"{'   ' * (depth - 1)}+- {line}" if depth else line
            for depth, line in enumerate([*lines, _READ])]  # fmt: skip
    kept = "error#" in lines[0]
    assert drops_errors("\n".join(["key: binary", *tree]), kept=kept) is drops


def test_the_names_are_those_of_the_functions() -> None:
    for module, name in zip((dead_letter_functions, rows, rows), ADDING_ERRORS, strict=True):
        assert callable(getattr(module, name))


def test_another_branch_of_the_plan_drops_nothing() -> None:
    plan = f"""key: binary
~Join Inner
:- ~Project [key#1]
:  +- ~Relation [key#1, x#4]
+- {_ADDS}
   +- {_READ}"""
    assert not drops_errors(plan, kept=False)
