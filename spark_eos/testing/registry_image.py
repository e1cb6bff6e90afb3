"""The schema registry's program, and the class archive that lets it start in two seconds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

from spark_eos._jars.cache import cached
from spark_eos._jars.class_archive import JVM_FLAGS, ClassArchive, fingerprint
from spark_eos._jars.jar_sets import jar_set
from spark_eos._jars.java import Java, find_java
from spark_eos.testing.loopback import HOST

JAR_SET: Final = "apicurio-registry-2.6.13"
API: Final = "/apis/ccompat/v7"
"""Path of Confluent's API."""
_TIMEOUT: Final = 30.0
_JSON: Final = "application/vnd.schemaregistry.v1+json"
_SETTINGS: Final = {
    "quarkus.http.host": HOST,
    # Twenty connections of an embedded database would cost time.
    "quarkus.datasource.jdbc.initial-size": "1",
    "quarkus.datasource.jdbc.min-size": "1",
    # Warnings, requests, and on which port it listens.
    "quarkus.banner.enabled": "false",
    "quarkus.log.level": "WARN",
    'quarkus.log.category."io.apicurio".level': "WARN",
    'quarkus.log.category."io.quarkus".level': "INFO",
    "quarkus.log.console.format": "%d{HH:mm:ss,SSS} %-5p %s%e%n",
    "quarkus.http.access-log.enabled": "true",
    "quarkus.http.access-log.pattern": "%m %U %s",
}


@dataclass(frozen=True)
class RegistryImage:
    """A schema registry's program: Java, Apicurio Registry, and the archive of its classes.

    Attributes:
        java: The Java that runs it.
        program: The jar that is run.
        archive: The class data archive.
    """

    java: Java
    program: Path
    archive: ClassArchive

    def command(
        self, *, port: int, data: Path, heap: str, options: Sequence[str] = ()
    ) -> list[str]:
        """Return the command line that runs it.

        Args:
            port: Port to listen on; 0 for a free one.
            data: Directory of its database.
            heap: Maximum heap of the JVM, as in ``-Xmx``.
            options: Further options for the JVM.
        """
        settings = {
            **_SETTINGS,
            "quarkus.http.port": str(port),
            # Written at once, so that it outlives a SIGKILL.
            "quarkus.datasource.jdbc.url": f"jdbc:h2:file:{data / 'schemas'};WRITE_DELAY=0",
        }
        return [
            str(self.java.executable),
            f"-Xmx{heap}",
            *JVM_FLAGS,
            *self.archive.options,
            *options,
            *(f"-D{name}={value}" for name, value in settings.items()),
            *("-jar", str(self.program)),
        ]


def registry_image() -> RegistryImage:
    """Return the image of the schema registry.

    Raises:
        spark_eos._jars.jar_sets.JarError: A file has the wrong checksum.
        spark_eos._jars.ivy.DownloadError: It could not be downloaded.
        spark_eos._jars.java.JavaError: There is no usable Java.
    """
    java = find_java()
    (directory,) = jar_set(JAR_SET)
    (program,) = directory.glob("*-runner.jar")
    key = fingerprint(java, sorted(directory.rglob("*.jar")))
    archive = ClassArchive(cached("registries", f"{JAR_SET}-{key}"), "Schema registries")
    return RegistryImage(java, program, archive)


def request(port: int, method: str, path: str, body: object = None) -> object:
    """Send a request to a registry on this machine, without any proxy, and return its answer.

    Raises:
        OSError: It does not answer, or with an error.
    """
    connection = HTTPConnection(HOST, port, timeout=_TIMEOUT)
    try:
        encoded = None if body is None else json.dumps(body)
        connection.request(method, API + path, encoded, {"Content-Type": _JSON})
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
        if response.status != 200:
            raise OSError(f"{method} {path}: {response.status} {text}")
        return json.loads(text)
    finally:
        connection.close()


def exercise(port: int) -> None:
    """Send a registry what tests send, so that its JVM can archive the classes it loads."""
    record = {"type": "record", "name": "Training", "fields": [{"name": "a", "type": "string"}]}
    message = 'syntax = "proto3"; message Training { string a = 1; }'
    document = {"type": "object", "properties": {"a": {"type": "string"}}}
    schemas = {"AVRO": json.dumps(record), "PROTOBUF": message, "JSON": json.dumps(document)}
    for kind, schema in schemas.items():
        subject = f"/subjects/{kind}"
        body = {"schema": schema, "schemaType": kind}
        for path in (f"{subject}/versions", f"{subject}/versions", subject):
            request(port, "POST", path, body)
        request(port, "POST", f"/compatibility{subject}/versions/latest", body)
        request(port, "GET", f"{subject}/versions/latest")
    request(port, "GET", "/schemas/ids/1")
    request(port, "GET", "/schemas/ids/1/versions")
    request(port, "GET", "/subjects")
    request(port, "PUT", "/config/AVRO", {"compatibility": "FULL"})
