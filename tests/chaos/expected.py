"""The expected output of a staged load: its query over all input, as a plain batch query.

``python -m chaos.expected`` with JSON settings writes it as Parquet, in its own process because the
harness has no Spark.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from chaos.staged_loads import expected_rows
from chaos.staged_schema_load import expected_prices
from spark_eos.testing import spark_session

_TESTS = Path(__file__).parents[1]


def write_expected(
    load: str,
    servers: str,
    source: str,
    targets: list[str],
    dead_letter_topics: list[str],
    schemas: dict[str, str],
    directory: Path,
) -> Path:
    where = directory / "expected"
    settings = {
        "load": load,
        "servers": servers,
        "source": source,
        "targets": targets,
        "dead_letter_topics": dead_letter_topics,
        "schemas": schemas,
        "where": str(where),
    }
    paths = [str(_TESTS), os.environ.get("PYTHONPATH")]
    with (directory / "expected.log").open("ab") as log:
        subprocess.run(
            [sys.executable, "-m", "chaos.expected", json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "TMPDIR": str(directory),
            },
            timeout=300,
            check=True,
        )
    return where


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    config = {"spark.sql.shuffle.partitions": "4", "spark.sql.session.timeZone": "UTC"}
    spark = spark_session(config=config, quick_start=True)
    frame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", settings["servers"])
        .option("subscribe", settings["source"])
        .load()
    )
    targets, letters = settings["targets"], settings["dead_letter_topics"]
    if settings["schemas"]:
        rows = expected_prices(frame, targets, letters, settings["schemas"])
    else:
        rows = expected_rows(settings["load"], frame, targets, letters)
    rows.write.parquet(settings["where"])
    spark.stop()


if __name__ == "__main__":
    main()
