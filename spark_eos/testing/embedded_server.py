"""A server for tests in its own JVM, which can be started, stopped and paused."""

import os
import shutil
import socket
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from confluent_kafka import KafkaException
from tenacity import Retrying, retry_if_exception_message, stop_after_attempt

from spark_eos._jars.cache import cached
from spark_eos._jars.class_archive import JVM_FLAGS, ClassArchive, fingerprint
from spark_eos._jars.java import Java, find_java
from spark_eos.errors import PrintableError
from spark_eos.testing.server_process import Guard, ServerProcess

HOST: Final = "127.0.0.1"
_Server = TypeVar("_Server", bound="EmbeddedServer")
_LOG_TAIL_LINES = 40
_LOG: Final = "server.log"


@dataclass(frozen=True)
class ServerImage:
    """A server's program: Java, the jars, and a class archive for quick starts."""

    java: Java
    jars: tuple[Path, ...]
    archive: ClassArchive

    def command(self, *program: str, heap: str, options: Sequence[str] = ()) -> list[str]:
        """Return the command line that runs a program with a maximum heap, as in ``-Xmx``."""
        first = [str(self.java.executable), f"-Xmx{heap}", *JVM_FLAGS, *self.archive.options]
        return [*first, *options, *program]


def server_image(place: str, jars: Iterable[Path], of: str) -> ServerImage:
    """Return the image of a server; its archive is kept in a directory named after `place`."""
    java, files = find_java(), tuple(jars)
    directory = cached(f"{place}-{fingerprint(java, files)}")
    return ServerImage(java, files, ClassArchive(directory, of))


class _Remains:
    """Removes the process and data of a server that is closed or garbage-collected."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self.process: ServerProcess | None = None
        self.directory: Path | None = None
        self.guard: Guard | None = None
        self._final_log = ""

    def log(self) -> str:
        """Return the server's log; after `discard`, its final state."""
        if self.directory is None:
            return self._final_log
        try:
            return (self.directory / _LOG).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def discard(self) -> None:
        """Stop the server and remove its data."""
        if os.getpid() != self._owner:
            return  # in a fork of the owner, which must not touch the owner's server
        if self.process is not None:
            self.process.kill()  # a clean stop isn't needed, as the data is removed
            self.process = None
        if self.directory is not None:
            self._final_log = self.log()
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None
        if self.guard is not None:
            self.guard.dismiss()
            self.guard = None


class EmbeddedServer(ABC):
    """A server with its own JVM and a temporary data directory; ``kind`` names it in messages."""

    def __init__(
        self, kind: str, failed: type[PrintableError], *, port: int | None, start_timeout: float
    ) -> None:
        self._kind = kind
        self._failed = failed
        self._port = port
        self._start_timeout = start_timeout
        self._has_run = False
        self._logged_before = 0  # length of the log before the latest start
        # The remains must not refer to this object, or the finalizer would keep it alive.
        self._remains = _Remains()
        # The finalizer also runs when the interpreter exits.
        self._finalizer = weakref.finalize(self, self._remains.discard)

    def __enter__(self: _Server) -> _Server:
        """Start the server."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server and remove its data."""
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the JVM."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """True if the JVM is alive, even if it is paused."""
        process = self._remains.process
        return process is not None and process.exit_code() is None

    def start(self) -> None:
        """Start the server and wait until it is ready; restarts keep its data and port."""
        if self.is_running:
            raise RuntimeError(f"The {self._kind} is already running")
        start_together([self])

    def prepare(self) -> None:
        """Download the jars and archive their classes, as the first start would do."""
        self._prepared()

    def _prepared(self) -> ServerImage:
        if self._port is not None and not _is_free(self._port):
            raise self._failed(
                f"Port {self._port} of {HOST} is in use: choose another port, or none to use a "
                "free one"
            )
        image = self._image()
        image.archive.train(
            lambda options: on_free_ports()(lambda: self._trainee()._train(image, options))  # noqa: SLF001
        )
        return image

    def _train(self, image: ServerImage, options: Sequence[str]) -> None:
        """Do what tests do, so that the JVM can archive the classes it loads."""
        try:
            self._begin(image, options)
            self._await_ready()
            self._exercise()
            self.stop(grace=60)  # the JVM writes the archive when it exits, which takes seconds
        except (OSError, KafkaException) as error:
            raise self._failed(f"{error}\n{self.log()}") from error
        finally:
            self.close()

    @abstractmethod
    def _image(self) -> ServerImage: ...

    @abstractmethod
    def _trainee(self) -> "EmbeddedServer":
        """Return another server with the same image."""

    @abstractmethod
    def _begin(self, image: ServerImage, options: Sequence[str] = ()) -> None:
        """Start the JVM with further options."""

    @abstractmethod
    def _is_ready(self, log: str) -> bool:
        """Return True if the server answers requests; `log` is its log since this start."""

    @abstractmethod
    def _exercise(self) -> None:
        """Use the server as tests do."""

    def stop(self, grace: float = 10) -> None:
        """Stop the server with SIGTERM, and with SIGKILL after `grace` seconds; keep the data."""
        self._disconnect()
        if self._remains.process is not None:
            self._remains.process.stop(grace)

    def kill(self) -> None:
        """End the server with SIGKILL; keep the data."""
        self._disconnect()
        if self._remains.process is not None:
            self._remains.process.kill()

    def pause(self) -> None:
        """Freeze the server with SIGSTOP: connections stay open, but it does not answer."""
        self._running().pause()

    def resume(self) -> None:
        """Resume the server with SIGCONT after `pause`."""
        self._running().resume()

    def close(self) -> None:
        """Stop the server and remove its data; only `log` still works."""
        self._disconnect()
        self._remains.discard()
        self._has_run = False

    def log(self) -> str:
        """Return the log since the first start."""
        return self._remains.log()

    def _disconnect(self) -> None:  # noqa: B027 - not all servers have clients
        """Drop the clients of a process that is about to end."""

    def _directory(self) -> Path:
        if self._remains.directory is None:
            prefix = f"spark-eos-{self._kind.replace(' ', '-')}-"
            self._remains.directory = Path(tempfile.mkdtemp(prefix=prefix))
        return self._remains.directory

    def _running(self) -> ServerProcess:
        if self._remains.process is None or not self.is_running:
            raise RuntimeError(f"The {self._kind} is not running; call start()")
        return self._remains.process

    def _launch(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start the JVM."""
        directory = self._directory()
        self._logged_before = len(self.log())
        if self._remains.guard is None:
            self._remains.guard = Guard(directory)
        # Store the process right away, so that it is removed no matter how the wait ends.
        self._remains.process = ServerProcess(
            command,
            directory=directory,
            log=directory / _LOG,
            guard=self._remains.guard,
            environment=environment,
        )

    def _await_ready(self, together: Sequence["EmbeddedServer"] = ()) -> None:
        """Wait until the server answers requests; on failure, kill it and raise with its log.

        Servers that are started together need each other, so none of them may end meanwhile.
        """
        deadline = time.monotonic() + self._start_timeout
        while not self._is_ready(self.log()[self._logged_before :]):
            for server in (self, *together):
                code = server._process().exit_code()  # noqa: SLF001
                if code is not None:
                    raise server._not_started(f"ended with exit code {code}")  # noqa: SLF001
            if time.monotonic() >= deadline:
                raise self._not_started(
                    f"did not answer within {self._start_timeout:g} s (start_timeout){self._hint()}"
                )
            time.sleep(0.02)
        self._has_run = True

    def _hint(self) -> str:
        """Return a cause, other than the time limit, why the server may not answer."""
        return ""

    def _process(self) -> ServerProcess:
        if self._remains.process is None:
            raise RuntimeError(f"The {self._kind} was closed")
        return self._remains.process

    def _not_started(self, reason: str) -> PrintableError:
        self._process().kill()
        tail = "\n".join(self.log().splitlines()[-_LOG_TAIL_LINES:])
        return self._failed(f"The {self._kind} {reason}. The end of its log:\n{tail}")


def start_together(
    servers: Sequence[EmbeddedServer], then: Callable[[], None] = lambda: None
) -> None:
    """Start servers that need each other to become ready; wait for all, then call `then`."""
    new = [server for server in servers if not server._has_run]  # noqa: SLF001
    images = [server._prepared() for server in servers]  # noqa: SLF001
    try:
        for server, image in zip(servers, images, strict=True):
            server._begin(image)  # noqa: SLF001
        for server in servers:
            server._await_ready(servers)  # noqa: SLF001
        then()
    except BaseException:
        for server in servers:
            if server in new:  # its data is not needed
                server.close()
            else:
                server.kill()
        raise


def on_free_ports(attempts: int = 5) -> Retrying:
    """Return a wrapper that retries a function if another process took a port that was free."""
    return Retrying(
        # Java's text for the error depends on the locale; Kafka's and the class's name don't.
        retry=retry_if_exception_message(
            match="(?s).*(failed to bind|BindException|Address alrea)"
        ),
        stop=stop_after_attempt(attempts),
        reraise=True,
    )


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        # With this option, which Java's servers set too, connections that just ended don't count.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True
