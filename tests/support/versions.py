"""Capabilities of the test run's brokers and Spark, for tests that need certain versions."""

from typing import Final

import pyspark
import pytest
from packaging.version import Version

from spark_eos._client.error_codes import Code
from spark_eos.testing.broker import kafka_version

_BY_ID: Final = Version(kafka_version()) >= Version("4.4")

OFFSET_COMMIT: Final = 6 if _BY_ID else 5
"""The version of TxnOffsetCommit that queries use."""

CHECKS: Final = 0 if _BY_ID else 1
"""Number of source topic lookups after offsets are sent: only offsets by name need any."""

STALE_EPOCH: Final = Code.STALE_MEMBER_EPOCH if _BY_ID else Code.ILLEGAL_GENERATION
"""The run's brokers' error for a wrong member epoch in TxnOffsetCommit."""

_SPARK_4_2: Final = Version(pyspark.__version__) >= Version("4.2")

HIDES_OPTIONS: Final = _SPARK_4_2
"""True if plans of streams that are not started hide secret options (docs/security.md)."""

needs_redacted_plans = pytest.mark.skipif(
    not HIDES_OPTIONS,
    reason="Spark 4.0 and 4.1 show all options of a stream that is not started in its plan",
)
CLOSES_SOCKETS: Final = _SPARK_4_2
"""True if PySpark itself closes the sockets of `DataFrame.collect`."""

needs_closed_sockets = pytest.mark.skipif(
    not CLOSES_SOCKETS, reason="PySpark 4.0 and 4.1 leave sockets open"
)
needs_topic_ids = pytest.mark.skipif(not _BY_ID, reason="needs Kafka 4.4: TxnOffsetCommit 6")
