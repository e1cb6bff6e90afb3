"""A real schema registry for tests, which starts in a few seconds and leaves nothing behind."""

import json
import os
import re
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection
from typing import Final

from spark_eos._jars.jar_sets import jar_set
from spark_eos.errors import PrintableError
from spark_eos.testing.embedded_server import HOST, EmbeddedServer, ServerImage, server_image

_JAR_SET: Final = "apicurio-registry-2.6.13"
# The path of Confluent's API.
_API: Final = "/apis/ccompat/v7"
_TIMEOUT: Final = 30.0
_JSON: Final = "application/vnd.schemaregistry.v1+json"
_SETTINGS: Final = {
    "quarkus.http.host": HOST,
    # The default of twenty connections to an embedded database would cost time.
    "quarkus.datasource.jdbc.initial-size": "1",
    "quarkus.datasource.jdbc.min-size": "1",
    # Log warnings, requests, and the port that the registry listens on.
    "quarkus.banner.enabled": "false",
    "quarkus.log.level": "WARN",
    'quarkus.log.category."io.apicurio".level': "WARN",
    'quarkus.log.category."io.quarkus".level': "INFO",
    "quarkus.log.console.format": "%d{HH:mm:ss,SSS} %-5p %s%e%n",
    "quarkus.http.access-log.enabled": "true",
    "quarkus.http.access-log.pattern": "%m %U %s",
}
_LISTENING: Final = re.compile(rf"Listening on: http://{re.escape(HOST)}:(\d+)")
# Variables that a JVM may need. The registry would use others, such as LOG_LEVEL, as settings.
_VARIABLES: Final = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH")


class RegistryStartError(PrintableError, RuntimeError):
    """The embedded schema registry could not be started; the message ends with its log.

    Examples:
        ::

            try:
                EmbeddedSchemaRegistry(port=8081).start()
            except RegistryStartError as error:
                print(error)
    """

    entry = "EOS27"


class EmbeddedSchemaRegistry(EmbeddedServer):
    """A schema registry on 127.0.0.1: Apicurio Registry with the API of Confluent's registry.

    Use it as a context manager, or call `start` and `close`. Its JVM is stopped and its schemas
    are deleted when the Python process ends, even if it is killed with SIGKILL. The class is not
    thread-safe.

    `stop`, `kill` and `pause` take the registry offline; `start` and `resume` bring it back with
    the same address and schemas. `log` includes its requests. Look-up by GUID, authentication and
    TLS are missing.

    The first start on a machine downloads the registry (142 MB) and prepares it for quick starts,
    which takes a minute; later starts take a few seconds.

    Args:
        port: Port to listen on; by default a free one.
        heap: Maximum heap of the JVM, as in ``-Xmx``.
        start_timeout: Seconds within which a start must succeed.

    Raises:
        RegistryStartError: From `start`: the registry does not start; the message ends with its
            log, or says that `port` is in use.
        spark_eos._jars.jar_sets.JarError: From `start`: the checksum differs from the lock's.
        spark_eos._jars.ivy.DownloadError: From `start`: the registry could not be downloaded.
        spark_eos._jars.java.JavaError: From `start`: there is no Java 17 or newer.

    Examples:
        ::

            with EmbeddedSchemaRegistry() as registry:
                client = SchemaRegistryClient({"url": registry.url})
                client.register_schema("orders-value", Schema('"string"', "AVRO"))
    """

    def __init__(
        self, *, port: int | None = None, heap: str = "128m", start_timeout: float = 60
    ) -> None:
        super().__init__(
            "schema registry", RegistryStartError, port=port, start_timeout=start_timeout
        )
        self._heap = heap
        self._given_port = port

    def close(self) -> None:
        """Stop the registry and remove its data; only `log` still works."""
        super().close()
        # Restarts keep the port, but a new registry may take any free one.
        self._port = self._given_port

    @property
    def url(self) -> str:
        """URL for clients, such as ``http://127.0.0.1:8081/apis/ccompat/v7``; restarts keep it."""
        if not self._has_run:
            raise RuntimeError("The schema registry has no URL before its first start()")
        return f"http://{HOST}:{self._port}{_API}"

    def _image(self) -> ServerImage:
        (directory,) = jar_set(_JAR_SET)
        return server_image(
            f"registries/{_JAR_SET}", sorted(directory.rglob("*.jar")), "Schema registries"
        )

    def _begin(self, image: ServerImage, options: Sequence[str] = ()) -> None:
        settings = {
            **_SETTINGS,
            "quarkus.http.port": str(self._port or 0),
            # Write at once, so that schemas survive a SIGKILL.
            "quarkus.datasource.jdbc.url": f"jdbc:h2:file:{self._directory() / 'schemas'};"
            "WRITE_DELAY=0",
        }
        (program,) = (jar for jar in image.jars if jar.name.endswith("-runner.jar"))
        properties = [f"-D{name}={value}" for name, value in settings.items()]
        command = image.command(*properties, "-jar", str(program), heap=self._heap, options=options)
        environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        self._launch(command, environment)

    def _is_ready(self, log: str) -> bool:
        match = _LISTENING.search(log)
        if match is None:
            return False
        self._port = int(match[1])
        try:
            self._request("GET", "/subjects")
        except OSError:
            return False
        return True

    def _trainee(self) -> "EmbeddedSchemaRegistry":
        return EmbeddedSchemaRegistry(start_timeout=180)

    def _exercise(self) -> None:
        record = {"type": "record", "name": "Training", "fields": [{"name": "a", "type": "string"}]}
        message = 'syntax = "proto3"; message Training { string a = 1; }'
        document = {"type": "object", "properties": {"a": {"type": "string"}}}
        schemas = {"AVRO": json.dumps(record), "PROTOBUF": message, "JSON": json.dumps(document)}
        for kind, schema in schemas.items():
            subject = f"/subjects/{kind}"
            body = {"schema": schema, "schemaType": kind}
            for path in (f"{subject}/versions", f"{subject}/versions", subject):
                self._request("POST", path, body)
            self._request("POST", f"/compatibility{subject}/versions/latest", body)
            self._request("GET", f"{subject}/versions/latest")
        self._request("GET", "/schemas/ids/1")
        self._request("GET", "/schemas/ids/1/versions")
        self._request("GET", "/subjects")
        self._request("PUT", "/config/AVRO", {"compatibility": "FULL"})

    def _request(self, method: str, path: str, body: object = None) -> None:
        """Send a request, bypassing any proxy; raise OSError unless it succeeds."""
        with closing(HTTPConnection(HOST, self._port, timeout=_TIMEOUT)) as connection:
            encoded = None if body is None else json.dumps(body)
            connection.request(method, _API + path, encoded, {"Content-Type": _JSON})
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        if response.status != 200:
            raise OSError(f"{method} {path}: {response.status} {text}")
