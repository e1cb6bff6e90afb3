"""Files that let a broker start in a second, prepared once and kept in the cache directory."""

import base64
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from spark_eos._jars.cache import locked
from spark_eos._jars.class_archive import digest
from spark_eos._jars.jar_sets import jar_set
from spark_eos._python_module import finished
from spark_eos.errors import PrintableError
from spark_eos.testing.broker_properties import broker_properties, free_ports, write_properties
from spark_eos.testing.embedded_server import ServerImage, server_image

CLUSTER_ID = "c3BhcmstZW9zLXRlc3RpbA"
_FORMAT_SECONDS = 120


class BrokerStartError(PrintableError, RuntimeError):
    """The embedded broker could not be started; the message ends with its log.

    Examples:
        ::

            try:
                EmbeddedKafka(properties={"log.segment.bytes": "many"}).start()
            except BrokerStartError as error:
                print(error)
    """

    entry = "EOS25"


def broker_image(jar_set_name: str) -> ServerImage:
    """Return the image of the broker with the jar set `jar_set_name`."""
    return server_image(f"brokers/{jar_set_name}", jar_set(jar_set_name), "Brokers")


def command(
    image: ServerImage, main: str, *arguments: str, heap: str, options: Sequence[str] = ()
) -> list[str]:
    """Return the command line that runs the class `main` from the broker's jars."""
    class_path = ("-cp", ":".join(map(str, image.jars)))
    configuration = resources.files(__package__) / "conf" / "broker-log4j2.properties"
    logging = f"-Dlog4j2.configurationFile={configuration}"
    return image.command(logging, *class_path, main, *arguments, heap=heap, options=options)


def create_data(
    image: ServerImage,
    target: Path,
    node: int,
    features: Mapping[str, int],
    properties: Mapping[str, str],
) -> None:
    """Create a formatted data directory for a node with the given features and settings."""
    # The only settings that formatting depends on are those that enable unstable features.
    relevant = {key: properties[key] for key in properties if key.startswith("unstable.")}
    key = digest(*map(str, sorted(features.items())), *map(str, sorted(relevant.items())))
    template = image.archive.directory / f"data-{key}"
    if not template.exists():
        with locked(template.with_suffix(".lock")):
            if not template.exists():
                _format(image, template, features, relevant)
    # Copy a template, since Kafka's storage tool would need another JVM.
    shutil.copytree(template, target)
    # Nodes differ only in their ids.
    names = {
        "version": "1",
        "cluster.id": CLUSTER_ID,
        "node.id": str(node),
        "directory.id": base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="),
    }
    write_properties(target / "meta.properties", names)


def _format(
    image: ServerImage, template: Path, features: Mapping[str, int], properties: Mapping[str, str]
) -> None:
    with tempfile.TemporaryDirectory(dir=template.parent, prefix="format-") as temporary:
        data = Path(temporary, "data")
        file = Path(temporary, "server.properties")
        write_properties(file, broker_properties(1, [free_ports()], data, properties))
        options = [f"--feature={name}={level}" for name, level in sorted(features.items())]
        formatting = command(
            image,
            "kafka.tools.StorageTool",
            *("format", "--cluster-id", CLUSTER_ID, "--config", str(file)),
            *options,
            heap="128m",
        )
        try:
            result = finished(formatting, _FORMAT_SECONDS)
        except subprocess.TimeoutExpired:
            raise BrokerStartError(
                f"Kafka's storage tool has not ended within {_FORMAT_SECONDS} s"
            ) from None
        if result.returncode != 0:
            raise BrokerStartError(
                f"Kafka's storage tool cannot format a data directory with features "
                f"{dict(features)}:\n{(result.stdout + result.stderr).strip()}"
            )
        data.rename(template)
