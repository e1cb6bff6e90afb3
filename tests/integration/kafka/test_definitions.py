"""Error codes and messages match Kafka's own list and schemas."""

import json
import re
import subprocess
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from spark_eos._client.error_codes import Code
from spark_eos._jars.jar_sets import jar_set
from spark_eos._jars.java import find_java
from spark_eos._kafka import protocol
from spark_eos.testing.broker import kafka_version
from support.versions import needs_topic_ids


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


def _fields(schema: dict[str, Any], common: dict[str, Any], above: str = "") -> Iterator[Any]:
    """Each field's name, type, versions and default; for structures, those of their fields."""
    for field in schema["fields"]:
        name, kind = above + field["name"], field["type"].removeprefix("[]")
        structure = field if "fields" in field else common.get(kind)
        shown = field["type"].replace(kind, "structure") if structure else field["type"]
        nullable, default = field.get("nullableVersions"), str(field.get("default"))
        yield name, shown, field["versions"], nullable, default
        if structure:
            yield from _fields(structure, common, f"{name}.")


# An older Kafka has fewer versions.
@needs_topic_ids
@pytest.mark.parametrize(
    "message", ["TxnOffsetCommit", "ConsumerGroupHeartbeat", "ConsumerGroupDescribe"]
)
@pytest.mark.parametrize("kind", ["Request", "Response"])
def test_schemas_are_kafkas(message: str, kind: str) -> None:
    jars = jar_set(f"kafka-{kafka_version()}")
    (jar,) = (jar for jar in jars if jar.name.startswith("kafka-clients"))
    with zipfile.ZipFile(jar) as files:
        text = files.read(f"common/message/{message}{kind}.json").decode()
    theirs = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    ours = getattr(protocol, f"{message}{kind}").json
    for name in ("apiKey", "type", "name", "validVersions", "flexibleVersions"):
        assert ours[name] == theirs[name]
    common = {structure["name"]: structure for structure in theirs.get("commonStructs", ())}
    assert [*_fields(ours, {})] == [*_fields(theirs, common)]
