"""What a new Python worker gets from PySpark's daemon."""

import sys

from spark_eos._python_module import finished

# NumPy before 2.0 imports numpy.random itself.
_FORKS = """
import os
import numpy.random
import pyspark.daemon
from spark_eos import worker_daemon

def manager():
    for _ in range(2):
        if os.fork() == 0:
            os.write(1, f"{numpy.random.bytes(8).hex()}\\n".encode())
            os._exit(0)
        os.wait()

pyspark.daemon.manager = manager
worker_daemon._main()
"""


def test_workers_draw_random_numbers_of_their_own() -> None:
    ended = finished([sys.executable, "-c", _FORKS], 60)
    assert len({*ended.stdout.split()}) == 2, ended.stderr
