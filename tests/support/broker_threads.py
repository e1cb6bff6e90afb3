"""What the embedded broker's threads do when a test waits for it in vain."""

import os
import signal
import time

import pytest

from spark_eos.testing import EmbeddedKafka


def add_threads(report: pytest.TestReport, broker: EmbeddedKafka) -> None:
    """Adds a thread dump to a test's report, or says that the broker is gone."""
    before = len(broker.log())
    try:
        os.kill(broker.pid, signal.SIGQUIT)
    except ProcessLookupError:
        found = "it has ended"
    else:
        # A JVM that can't write it within a second tells enough by that.
        time.sleep(1)
        found = broker.log()[before:]
    report.sections.append(("Threads of the embedded Kafka", found))
