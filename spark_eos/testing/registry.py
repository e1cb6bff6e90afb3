"""A real schema registry for tests: ready in a few seconds, gone when it is closed."""

import os
import re
from collections.abc import Sequence
from typing import Final

from spark_eos.errors import PrintableError
from spark_eos.testing.embedded_server import EmbeddedServer
from spark_eos.testing.loopback import HOST, is_free
from spark_eos.testing.registry_image import API, RegistryImage, exercise, registry_image, request

_LISTENING: Final = re.compile(rf"Listening on: http://{re.escape(HOST)}:(\d+)")
# What a JVM may need. The registry would take variables such as LOG_LEVEL as its own settings.
_VARIABLES: Final = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH")


class RegistryStartError(PrintableError, RuntimeError):
    """The embedded schema registry could not be started; the message ends with its log.

    Example:
        ::

            try:
                EmbeddedSchemaRegistry(port=8081).start()
            except RegistryStartError as error:
                print(error)
    """

    entry = "EOS27"


class EmbeddedSchemaRegistry(EmbeddedServer):
    """A schema registry on 127.0.0.1: Apicurio Registry, with the API of Confluent's.

    Use it as a context manager, or call `start` and `close`. Its JVM and its schemas are removed
    when the Python process ends, even by SIGKILL. It is not thread-safe.

    `stop`, `kill` and `pause` take it away, `start` and `resume` bring it back, with the same
    address and schemas. `log` has its requests. It lacks Confluent's look-up by GUID,
    authentication and TLS.

    The first start on a machine downloads it (142 MB) and prepares it for quick starts, which
    takes a minute; later ones take a few seconds.

    Args:
        port: Port to listen on; by default a free one.
        heap: Maximum heap of the JVM, as in ``-Xmx``.
        start_timeout: Seconds within which a start must succeed.

    Raises:
        RegistryStartError: From `start`: it does not start; the message ends with its log, or says
            that `port` is in use.
        spark_eos._jars.jar_sets.JarError: From `start`: its checksum differs from the lock's.
        spark_eos._jars.ivy.DownloadError: From `start`: it could not be downloaded.
        spark_eos._jars.java.JavaError: From `start`: there is no Java 17 or newer.

    Example:
        ::

            with EmbeddedSchemaRegistry() as registry:
                client = SchemaRegistryClient({"url": registry.url})
                client.register_schema("orders-value", Schema('"string"', "AVRO"))
    """

    def __init__(
        self, *, port: int | None = None, heap: str = "128m", start_timeout: float = 60
    ) -> None:
        super().__init__("schema registry", RegistryStartError, start_timeout=start_timeout)
        self._wanted_port = port
        self._heap = heap
        self._port: int | None = None

    @property
    def url(self) -> str:
        """URL for clients, such as ``http://127.0.0.1:8081/apis/ccompat/v7``; restarts keep it."""
        if self._port is None:
            raise RuntimeError("The schema registry has no URL before its first start()")
        return f"http://{HOST}:{self._port}{API}"

    def prepare(self) -> None:
        """Download the registry and archive its classes, as the first start would do."""
        self._prepared()

    def _prepared(self) -> RegistryImage:
        port = self._port or self._wanted_port
        if port is not None and not is_free(port):
            raise RegistryStartError(
                f"Port {port} of {HOST} is in use: choose another one, or none for a free one"
            )
        image = registry_image()
        image.archive.train(lambda options: _train(image, options))
        return image

    def _start(self) -> None:
        self._start_image(self._prepared())

    def _start_image(self, image: RegistryImage, options: Sequence[str] = ()) -> None:
        before = self._port
        port = before or self._wanted_port or 0
        command = image.command(port=port, data=self._directory(), heap=self._heap, options=options)
        environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        try:
            self._launch(command, self._is_ready, environment)
        except BaseException:
            if before is None:  # it has never run, so its data is worthless
                self._port = None
                self.close()
            raise

    def _is_ready(self, log: str) -> bool:
        found = _LISTENING.search(log)
        if found is None:
            return False
        self._port = int(found[1])
        try:
            request(self._port, "GET", "/subjects")
        except OSError:
            return False
        return True


def _train(image: RegistryImage, options: Sequence[str]) -> None:
    """Run a registry once through what tests do, so that its JVM can archive the classes."""
    registry = EmbeddedSchemaRegistry(start_timeout=180)
    try:
        registry._start_image(image, options)  # noqa: SLF001
        exercise(registry._port or 0)  # noqa: SLF001
        registry.stop(grace=60)  # the JVM writes the archive when it exits, which takes seconds
    except OSError as error:
        raise RegistryStartError(f"{error}\n{registry.log()}") from error
    finally:
        registry.close()
