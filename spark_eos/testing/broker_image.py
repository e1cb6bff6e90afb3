"""The files that let a broker start in a second: prepared once, kept in the cache directory.

- A class data archive.
- A formatted data directory for each choice of features. Copying it saves running Kafka's storage
  tool, which needs another JVM.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from spark_eos._jars.cache import cached, locked
from spark_eos._jars.class_archive import JVM_FLAGS, ClassArchive, digest, fingerprint
from spark_eos._jars.jar_sets import jar_set
from spark_eos._jars.java import Java, find_java
from spark_eos.errors import PrintableError
from spark_eos.testing.broker_properties import broker_properties, free_ports, write_properties

CLUSTER_ID = "c3BhcmstZW9zLXRlc3RpbA"


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


@dataclass(frozen=True)
class BrokerImage:
    """A broker's program: Java, the broker's jars, and the files prepared for both."""

    java: Java
    jars: tuple[Path, ...]
    directory: Path

    @property
    def archive(self) -> ClassArchive:
        """The class data archive."""
        return ClassArchive(self.directory, "Brokers")

    def command(
        self, main: str, *arguments: str, heap: str, options: Sequence[str] = ()
    ) -> list[str]:
        """Return the command line that runs the class `main` from the broker's jars."""
        return [
            str(self.java.executable),
            f"-Xmx{heap}",
            *JVM_FLAGS,
            *options,
            f"-Dlog4j2.configurationFile={_log_configuration()}",
            *("-cp", ":".join(map(str, self.jars))),
            main,
            *arguments,
        ]

    def kafka(self, properties: Path, *, heap: str, options: Sequence[str] = ()) -> list[str]:
        """Return the command line that runs the broker."""
        options = [*self.archive.options, *options]
        return self.command("kafka.Kafka", str(properties), heap=heap, options=options)

    def create_data(
        self, target: Path, features: Mapping[str, int], properties: Mapping[str, str]
    ) -> None:
        """Create a formatted data directory.

        Args:
            target: The directory, which must not exist.
            features: Levels of Kafka features, for example ``{"transaction.version": 1}``.
            properties: The broker's own settings.

        Raises:
            BrokerStartError: Kafka's storage tool refuses.
        """
        # Formatting depends on the settings only in which features exist.
        relevant = {key: properties[key] for key in properties if key.startswith("unstable.")}
        key = digest(*map(str, sorted(features.items())), *map(str, sorted(relevant.items())))
        template = self.directory / f"data-{key}"
        if not template.exists():
            with locked(self.directory / f"data-{key}.lock"):
                if not template.exists():
                    self._format(template, features, relevant)
        shutil.copytree(template, target)

    def _format(
        self, template: Path, features: Mapping[str, int], properties: Mapping[str, str]
    ) -> None:
        with tempfile.TemporaryDirectory(dir=self.directory, prefix="format-") as temporary:
            data = Path(temporary, "data")
            file = Path(temporary, "server.properties")
            write_properties(file, broker_properties(free_ports(), data, properties))
            options = [f"--feature={name}={level}" for name, level in sorted(features.items())]
            result = subprocess.run(
                self.command(
                    "kafka.tools.StorageTool",
                    *("format", "--cluster-id", CLUSTER_ID, "--config", str(file)),
                    *options,
                    heap="128m",
                ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if result.returncode != 0:
                raise BrokerStartError(
                    f"Kafka's storage tool cannot format a data directory with features "
                    f"{dict(features)}:\n{(result.stdout + result.stderr).strip()}"
                )
            data.rename(template)


def broker_image(jar_set_name: str) -> BrokerImage:
    """Return the image of the broker with the jar set `jar_set_name`.

    Raises:
        spark_eos._jars.jar_sets.JarError: There is no such set, or a file has the wrong checksum.
        spark_eos._jars.ivy.DownloadError: The jars could not be downloaded.
        spark_eos._jars.java.JavaError: There is no usable Java.
    """
    java = find_java()
    jars = jar_set(jar_set_name)
    key = fingerprint(java, jars)
    return BrokerImage(java, tuple(jars), cached("brokers", f"{jar_set_name}-{key}"))


def _log_configuration() -> Path:
    return Path(str(resources.files(__package__) / "conf" / "broker-log4j2.properties"))
