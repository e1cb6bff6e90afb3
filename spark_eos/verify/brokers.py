"""Requests that librdkafka's admin client does not have, by kafka-python.

Not by kafka-python's own admin client either: that does not wait for stable offsets, keeps a
coordinator that has moved, gives up at the first partition's error, and can't fetch control
records.
"""

import time
from typing import Any, Final

from kafka import errors as kafka_errors
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from spark_eos._client.connections import ConnectionManager
from spark_eos._client.kafka_logs import our_connections
from spark_eos._client.kafka_python import EventLoop
from spark_eos._client.settings import ClientSettings
from spark_eos.errors import DeadlineExceededError, SparkEosError, VerificationError

_PAUSE: Final = 0.1
# Seconds after which a broker that does not answer counts as down.
_PATIENCE: Final = 3.0
# Limit for connecting to a broker when any other broker can answer instead.
_CONNECT_MS: Final = 3_000
_PASSING: Final = (
    kafka_errors.NodeNotReadyError,
    kafka_errors.UnknownBrokerIdError,
    kafka_errors.KafkaConnectionError,
    kafka_errors.RequestTimedOutError,
    kafka_errors.KafkaTimeoutError,
    kafka_errors.Cancelled,
    OSError,
)


def error_name(code: int) -> str:
    """A Kafka error code with its name.

    Example:
        >>> error_name(16)
        '16 NOT_COORDINATOR'
    """
    return f"{code} {kafka_errors.for_code(code).message}"


class Brokers:
    """Connections to the brokers of one cluster.

    It finds out at once, and says why, if a listener refuses the client; librdkafka is slow to.
    """

    def __init__(self, settings: ClientSettings, timeout: float) -> None:
        self._timeout = timeout
        # By node id, the names of those that do not answer.
        self._silent: dict[int, str] = {}
        configuration = settings.for_kafka_python()
        self._loop = EventLoop(configuration, our_connections)
        self._manager = ConnectionManager(self._loop.selector, settings, configuration)
        try:
            self._manager.reach(timeout)
        except SparkEosError:
            self.close()
            raise
        except kafka_errors.KafkaError as error:
            self.close()
            raise DeadlineExceededError(
                f"no broker of bootstrap.servers={settings.bootstrap_servers!r} could be reached "
                f"within {timeout:g} s (--timeout): {self._manager.unreached()}"
            ) from error

    def close(self) -> None:
        """Closes all connections and stops their thread."""
        self._loop.close(self._manager)

    def ids(self) -> list[int]:
        """The ids of all brokers."""
        return sorted(self._manager.addresses())

    def ask_each(self, request: Any) -> dict[int, Any]:
        """The answers of all brokers to a request; ``silent`` names those that do not answer.

        These are not asked again. Metadata may name a broker long after it died.
        """
        until = time.monotonic() + _PATIENCE
        found: dict[int, Any] = {}
        while left := [one for one in self.ids() if one not in {*found, *self._silent}]:
            milliseconds = max(1, int((until - time.monotonic()) * 1000))
            asked = [(one, request) for one in left]
            answers = self._loop.run(self._manager.answers, asked, milliseconds)
            found |= {
                one: answer for one, answer in zip(left, answers, strict=True) if answer is not None
            }
            if time.monotonic() >= until:
                self._silent |= {one: self._name(one) for one in left if one not in found}
            else:
                time.sleep(_PAUSE)
        return found

    @property
    def silent(self) -> tuple[str, ...]:
        """Those that do not answer, such as ``2 (host:9092)``."""
        return tuple(self._silent.values())

    def _name(self, broker: int) -> str:
        return f"{broker} ({self._manager.addresses().get(broker, 'unknown')})"

    def send(self, request: Any, broker: int | None, timeout: float | None = None) -> Any:
        """Sends a request that only reads; repeats it, within the timeout, if the answer is lost.

        Without a broker, any may answer.

        Raises:
            DeadlineExceededError: No answer in time.
            VerificationError: The broker does not support the request.
        """
        seconds = self._timeout if timeout is None else timeout
        until = time.monotonic() + seconds
        which = "any broker" if broker is None else f"broker {self._name(broker)}"

        async def exchange() -> Any:
            timeout_ms = max(1, int((until - time.monotonic()) * 1000))
            return await self._manager.answer(request, broker, timeout_ms, _CONNECT_MS)

        try:
            return Retrying(
                retry=retry_if_exception_type(_PASSING),
                wait=wait_fixed(_PAUSE),
                stop=stop_after_delay(seconds),
                reraise=True,
            )(self._loop.run, exchange)
        except _PASSING as error:
            raise DeadlineExceededError(
                f"{request.name}: no answer of {which} within {seconds:g} s: {error!r}"
            ) from error
        except kafka_errors.KafkaError as error:
            raise VerificationError(f"{request.name}, {which}: {error!r}") from error
