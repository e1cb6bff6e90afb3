"""A query of `support.shapes` for `support.queries.QueryProcess`; its settings are JSON.

Settings besides those of ExactlyOnceSink: ``source``, a topic or a directory; ``shape``; ``config``
(of the session); and ``forever``, whether the query waits for more records at the end.
"""

import json
import sys
from typing import Any

from spark_eos import ExactlyOnceSink
from spark_eos.testing import spark_session
from support.query_main import run_to_the_end
from support.shapes import SHAPES, UNFORESEEN
from support.sinks import arguments


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    source, shape = settings.pop("source"), {**SHAPES, **UNFORESEEN}[settings.pop("shape")]
    forever = settings.pop("forever", False)
    config = {"spark.sql.shuffle.partitions": "2", **shape.config, **settings.pop("config", {})}
    spark = spark_session(config=config, quick_start=True)
    sink = ExactlyOnceSink(**arguments(**settings))
    frames = shape.frames(spark, sink, source, {"maxOffsetsPerTrigger": "30"})
    writer = sink.write(shape.transform(*frames)).outputMode(shape.mode)
    run_to_the_end(writer if forever else writer.trigger(availableNow=True))


if __name__ == "__main__":
    main()
