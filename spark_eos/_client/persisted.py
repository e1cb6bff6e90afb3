"""The format of everything that outlives a run: offset metadata, markers and dead letters."""

from typing import Final

from spark_eos.errors import FormatVersionError

FORMAT: Final = 2
"""The format that this version writes, and the only one that it reads."""


def check_format(version: object, what: str, own: int = FORMAT, *, otherwise: str = "") -> None:
    """Refuse another version's format; ``otherwise`` is appended to the message's advice."""
    if version == own and not isinstance(version, bool):
        return
    which = "an unnumbered format" if version is None else f"format {version!r:.20}"
    raise FormatVersionError(
        f"{what} was written by another version of spark-eos, in {which}, and this version reads "
        f"only format {own}. Nothing was written. Continue with the other version; or start with "
        "another group_id and another checkpoint_location, which writes everything again unless "
        f"you choose where to start (starting_offsets, or the new group's offsets){otherwise}"
    )
