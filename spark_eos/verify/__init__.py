"""An independent verifier: it judges a query by its input and output topics alone.

It shares no code with the writing side, so it can't repeat a mistake made there.
"""

from spark_eos.errors import VerificationError
from spark_eos.verify.findings import Example, Finding, Findings, GroupOffset, Kind, Verdict
from spark_eos.verify.places import Position
from spark_eos.verify.verifier import verify

__all__ = [
    "Example",
    "Finding",
    "Findings",
    "GroupOffset",
    "Kind",
    "Position",
    "Verdict",
    "VerificationError",
    "verify",
]
