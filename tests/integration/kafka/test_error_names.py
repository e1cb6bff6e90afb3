"""Error codes have the names that Kafka's own list gives them."""

import re
import subprocess

import pytest

from spark_eos._client.error_codes import Code
from spark_eos._jars.jar_sets import jar_set
from spark_eos._jars.java import find_java
from spark_eos.testing.broker import kafka_version


@pytest.mark.proves("error-134")
def test_codes_have_kafkas_names() -> None:
    jars = ":".join(map(str, jar_set(f"kafka-{kafka_version()}")))
    # The program that makes the table of the protocol's documentation.
    errors = "org.apache.kafka.common.protocol.Errors"
    done = subprocess.run(
        [find_java().executable, "-cp", jars, errors], capture_output=True, text=True, check=True
    )
    found = re.findall(r"<td>(\w+)</td><td>(-?\d+)</td>", done.stdout)
    names = {int(code): name for name, code in found}
    assert len(names) > 120
    # An older Kafka does not know the newest of them.
    ours = {int(code): code.name for code in Code if code <= max(names)}
    assert ours == {code: names[code] for code in ours}
