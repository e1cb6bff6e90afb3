"""A verifier that trusts nobody: it judges a query by its input and output topics alone.

It shares no code with what writes, so a mistake there is not repeated here.
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
