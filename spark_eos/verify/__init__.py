"""An independent verifier: it judges a query by its topics alone.

`verify` judges the output by the input, record by record; `compare` by what the user expects.
It reads headers, offsets and transactions by code of its own, so it can't repeat a mistake of the
code that writes them. Both sides share client settings, connections and checks of arguments.
"""

import spark_eos._client  # noqa: F401 - before kafka-python, which it imports quietly
from spark_eos.errors import VerificationError
from spark_eos.verify.comparing import compare
from spark_eos.verify.findings import (
    Comparison,
    Difference,
    Example,
    Finding,
    Findings,
    GroupOffset,
    Kind,
    Position,
    Result,
    RowExample,
    Verdict,
)
from spark_eos.verify.verifier import verify

__all__ = [
    "Comparison",
    "Difference",
    "Example",
    "Finding",
    "Findings",
    "GroupOffset",
    "Kind",
    "Position",
    "Result",
    "RowExample",
    "Verdict",
    "VerificationError",
    "compare",
    "verify",
]
