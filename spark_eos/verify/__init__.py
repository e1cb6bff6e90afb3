"""An independent verifier that judges a query from its topics alone.

`verify` checks the output against the input, record by record; `compare` checks it against rows
that the user provides. The verifier has its own code for reading headers, offsets and transactions,
so it can't repeat a mistake made by the code that writes them. It shares only client settings,
connections and argument checks with the rest of the package.
"""

import spark_eos._client  # noqa: F401 - first, to import kafka-python without warnings
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
