"""The verifier's temporary database, if it is interrupted or fails."""

from collections.abc import Callable

import pytest

from spark_eos.errors import VerificationError
from spark_eos.verify.database import Database


def test_a_full_disk_is_an_error_with_its_cure() -> None:
    with Database("CREATE TABLE t (a);") as database:
        database.run(["PRAGMA max_page_count = 20"])
        with pytest.raises(VerificationError, match=r"disk is full.*set TMPDIR"):
            database.insert("t VALUES (?)", (("x" * 1000,) for _ in range(1000)))


_SLOW = "SELECT count(*) FROM (SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3)"


@pytest.mark.parametrize(
    "call",
    [
        lambda database: database.ask(_SLOW),
        lambda database: database.run([_SLOW]),
        lambda database: database.insert("t VALUES (?)", [(1,)]),
    ],
)
def test_an_interrupt_is_one_in_each_call(call: Callable[[Database], object]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    with Database("CREATE TABLE t (a);") as database:
        database._database.set_progress_handler(interrupted, 1)
        with pytest.raises(KeyboardInterrupt):
            call(database)
        database._database.set_progress_handler(None, 0)
