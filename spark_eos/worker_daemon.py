"""PySpark's daemon of Python workers, with a task's modules imported before it forks a worker.

Set ``spark.python.daemon.module`` to this module, or use ``session_builder(worker_daemon=True)``:
a query's first batch then does not wait for these imports. Spark runs ``python -m`` with the name
of the module on each host with executors, so spark-eos must be installed there, not shipped with
the job.

Examples:
    ::

        spark-submit --conf spark.python.daemon.module=spark_eos.worker_daemon my_query.py
"""

import os
import sys
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path


def _prefer_installed_pyspark() -> None:
    """Import PySpark as installed if Spark's pyspark.zip is a copy of the same installation.

    Python compiles the modules in a zip file again in each process, which takes over a second.
    """
    others = [path for path in sys.path if Path(path).name != "pyspark.zip"]
    installed = PathFinder.find_spec("pyspark", others)
    home = os.environ.get("SPARK_HOME")
    if home and installed and installed.origin and Path(installed.origin).parent == Path(home):
        sys.path[:] = others


def _draw_own_numbers(daemon: int) -> None:
    """Give a new worker random numbers that differ from those of all other workers."""
    # NumPy seeds its generator when it is imported; before 2.0, with numpy itself.
    numbers = sys.modules.get("numpy.random")
    if numbers is not None and os.getppid() == daemon:  # not in a fork of a worker
        numbers.seed()


def _main() -> None:
    _prefer_installed_pyspark()
    from pyspark.daemon import manager  # noqa: PLC0415 - from the path chosen above

    import spark_eos._exactly_once.task  # noqa: PLC0415
    import spark_eos._spark.dead_letter_functions  # noqa: F401, PLC0415

    os.register_at_fork(after_in_child=partial(_draw_own_numbers, os.getpid()))
    manager()


if __name__ == "__main__":
    _main()
