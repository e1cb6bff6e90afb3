"""A user's script that starts a query, as a file."""

from pathlib import Path

from support.flow import Flow

_SCRIPT = """
from pyspark.sql import functions as F
from spark_eos import ExactlyOnceSink, run, session_builder

{session}
sink = ExactlyOnceSink(
    kafka={{"bootstrap.servers": {servers!r}}},
    group_id={group!r},
    topic={target!r},
    checkpoint_location={checkpoint!r},
)
rows = sink.read(spark, subscribe={source!r}).select("source", "key", "value")
query = sink.write({rows}).start()
{wait}
"""


def write_script(
    flow: Flow,
    directory: Path,
    *,
    session: str = "spark = session_builder().getOrCreate()",
    rows: str = "rows",
    wait: str = "run(query)",
) -> Path:
    """Writes a script with a flow's topics."""
    script = directory / "my_query.py"
    code = _SCRIPT.format(
        session=session,
        servers=flow.bootstrap_servers,
        group=flow.group_id,
        target=flow.target,
        checkpoint=flow.checkpoint,
        source=flow.source,
        rows=rows,
        wait=wait,
    )
    script.write_text(code, encoding="utf-8")
    return script
