"""A transactional producer that hands whole columns of rows to librdkafka's C API."""

# librdkafka reports through events instead of callbacks, so that no Python code runs inside it.
# Calls don't block other Python threads. Values are not copied: a handle keeps their memory alive
# until none of its records is in flight.

import contextlib
import ctypes as c
import functools
import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
from confluent_kafka import KafkaError, KafkaException

from spark_eos._client.librdkafka_api import (
    ANY_PARTITION,
    ARGUMENT,
    INT,
    MESSAGE,
    POINTER,
    TEXT,
    Array,
    Kind,
    Library,
    Message,
)
from spark_eos._client.oauth import TokenError, called
from spark_eos.errors import ConfigurationError

_INSTALL: Final = "install confluent-kafka>=2.16,<3 from PyPI"
_MAJOR: Final = 2
_TEXT: Final = 512
# Topic name for records that are never sent.
_OWN: Final = "spark-eos"
# Principal and extensions of a token if the token function returned none.
_OF_TOKENS: Final[tuple[Any, ...]] = ("", {})
# Maximum duration of a call in seconds: no events or signals are handled during a call.
_PIECE: Final = 0.15

# rdkafka.h: rd_kafka_type_t, RD_KAFKA_MSG_F_*, RD_KAFKA_PURGE_F_*, RD_KAFKA_PARTITION_UA.
_PRODUCER: Final = 0
_PURGE_ALL: Final = 0x1 | 0x2
# RD_KAFKA_EVENT_*.
_DELIVERY, _LOG, _ERROR, _TOKEN = 0x1, 0x4, 0x8, 0x100
# Levels of `logging`, by syslog's level.
_LEVELS: Final = (
    *[logging.CRITICAL] * 3,
    logging.ERROR,
    logging.WARNING,
    *[logging.INFO] * 2,
    logging.DEBUG,
)


class FailedRecord(NamedTuple):
    code: int
    topic: str
    # The number that was passed with the record.
    number: int
    # Size of key and value in bytes.
    size: int


@functools.cache
def library() -> Any:
    """Return librdkafka's functions, after checking that they work as expected here."""
    try:
        library: Any = Library()
    except (AttributeError, OSError) as error:
        raise ConfigurationError(f"librdkafka's C API is missing: {error}; {_INSTALL}") from error
    version = library.version()
    if version >> 24 != _MAJOR:
        raise ConfigurationError(f"librdkafka has version {version:#010x}; {_INSTALL}")
    if (wrong := _misread(library)) is not None:
        raise ConfigurationError(
            f"librdkafka's structures differ from those of 2.x: {wrong}; {_INSTALL}"
        )
    return library


def _misread(library: Any) -> str | None:
    """Describe how a handle without brokers misreads records; return None if it doesn't."""
    number, text = (1 << 40) + 1, b"spark-eos"
    content = c.create_string_buffer(text)
    at = c.addressof(content)
    sent = np.zeros(2, MESSAGE)
    sent["value"], sent["value_size"] = at, (5, 0)
    sent["key"], sent["key_size"] = (0, at), (0, len(text))
    sent["number"] = (number, number + 1)
    failed: list[FailedRecord] = []
    with contextlib.closing(Handle({"log_level": 0}, failed.append, functions=library)) as handle:
        alone = np.zeros(6, ARGUMENT)
        alone["kind"] = [kind for kind in Kind if kind is not Kind.PARTITION]
        alone["first"] = (handle.topic(_OWN), at, at, number + 2, 7_000, at)
        alone["second"] = (0, 5, len(text), 0, 0, at)
        alone["third"][-1] = 5
        taken = handle.produce_batch(_OWN, sent, content)
        error = handle.produce_each(alone, [len(alone)], content)
        handle.purge()
        handle.poll(0)
    wanted = [
        FailedRecord(KafkaError._PURGE_QUEUE, _OWN, number + index, size)
        for index, size in enumerate((5, len(text), 5 + len(text)))
    ]
    return None if failed == wanted else f"{taken}, {error}, {failed} instead of {wanted}"


class _Closed:
    """Replaces librdkafka's functions once the producer is closed."""

    def __getattr__(self, name: str) -> NoReturn:
        raise KafkaException(KafkaError(KafkaError._STATE, f"{name}: the producer is closed"))


class Handle:
    """A librdkafka producer for use by one thread; its methods raise ``KafkaException``."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        # `poll` calls the following three functions. `on_error` is also called for fatal errors,
        # and `on_log` gets a level of `logging`.
        on_failed: Callable[[FailedRecord], None],
        on_error: Callable[[KafkaError], None] = lambda _error: None,
        on_log: Callable[[int, str], None] = lambda _level, _line: None,
        # Passed only while librdkafka's functions are being checked.
        functions: Any = None,
    ) -> None:
        self._library: Any = functions or library()
        self._token: Any = settings.get("oauth_cb")
        # True after a temporary failure to get a token: librdkafka asks again in ten seconds.
        self.awaits_token = False
        self._on_failed = on_failed
        self._on_error = on_error
        self._on_log = on_log
        self._memory: list[object] = []
        self._topics: dict[str, int] = {}
        self._handle = self._new(settings)
        self._queue = self._library.queue_get_main(self._handle)
        self._library.set_log_queue(self._handle, None)
        held = (self._library, self._handle, self._queue, self._topics, self._memory)
        self._close = weakref.finalize(self, _destroy, *held, os.getpid())

    def _new(self, settings: Mapping[str, Any]) -> int:
        api, why = self._library, c.create_string_buffer(_TEXT)
        conf = api.conf_new()
        # Log lines always become events, whatever the user sets: they may report lost connections.
        named = {"client.software.name": "spark-eos", **settings, "log.queue": True}
        for name, value in named.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if name != "oauth_cb" and api.conf_set(conf, name.encode(), text.encode(), why, _TEXT):
                api.conf_destroy(conf)
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, why.value.decode()))
        wanted = _DELIVERY | _LOG | _ERROR | (0 if self._token is None else _TOKEN)
        api.conf_set_events(conf, wanted)
        handle = api.new(_PRODUCER, conf, why, _TEXT)
        if not handle:
            api.conf_destroy(conf)
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, why.value.decode()))
        return int(handle)

    def close(self) -> None:
        """Close the producer and wait for its threads to end; records in flight are lost."""
        self._close()
        # The handle has been freed: using it would crash the process.
        self._library = _Closed()

    def abandon(self) -> None:
        """Begin aborting the open transaction, if there is one, so that the handle can close."""
        # While librdkafka 2.16 closes, it may start adding a partition to the transaction, and then
        # an assertion crashes the process (txn_req_cnt in rdkafka_txnmgr.c). Once an abort has
        # begun, which takes librdkafka's thread a moment, no more partitions are added.
        # Purge and poll first: the abort waits until the reports of purged records are served.
        self.purge()
        with contextlib.suppress(KafkaException):
            self.poll(0)
        with contextlib.suppress(KafkaException):
            self.abort_transaction(_PIECE)

    # Records ----------------------------------------------------------------------------------

    def topic(self, name: str) -> int:
        """Return the address of a topic's structure, which lives as long as the handle."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._library.topic_new(self._handle, name.encode(), None)
            if not topic:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, f"topic {name!r}"))
            self._topics[name] = topic
        return topic

    def produce_batch(
        self, topic: str, messages: Array, memory: object
    ) -> tuple[int, KafkaError | None]:
        """Pass messages to librdkafka; return how many it accepts, and the error for the next."""
        # Let the partitioner choose. With a partition in each message (RD_KAFKA_MSG_F_PARTITION),
        # librdkafka 2.16 adds partition -1 to the transaction while it does not know the topic, and
        # loses messages for partitions that don't exist. After a message that finds the queue full,
        # no further message is accepted.
        self._memory.append(memory)
        call, at = self._library.produce_batch, messages.ctypes.data
        if call(self.topic(topic), ANY_PARTITION, 0, at, len(messages)) == len(messages):
            return len(messages), None
        first = int(np.argmax(messages["error"] != 0))
        code = int(messages["error"][first])
        return first, (self._fatal() if code == KafkaError._FATAL else None) or KafkaError(code)

    def produce_each(
        self, array: Array, counts: Sequence[int], memory: object
    ) -> tuple[int, KafkaError | None]:
        """Like `produce_batch`, record by record; ``counts`` has each record's argument count."""
        self._memory.append(memory)
        call, handle, at = self._library.produceva, self._handle, array.ctypes.data
        for taken, count in enumerate(counts):
            error = call(handle, at, count)
            if error is not None:
                return taken, self._as_exception(error)
            at += count * ARGUMENT.itemsize
        return len(counts), None

    @property
    def unacknowledged(self) -> int:
        """The number of unacknowledged records, plus the number of unserved events."""
        return int(self._library.outq_len(self._handle))

    def flush(self, seconds: float) -> int:
        """Serve events until no record is in flight; return how many are left if time runs out."""
        end = time.monotonic() + seconds
        while True:
            left = min(_PIECE, end - time.monotonic())
            on_their_way = self._library.flush(self._handle, max(0, int(left * 1000)))
            self.poll(0)
            if not on_their_way:
                return 0
            if left < _PIECE:
                return max(1, self.unacknowledged)

    def purge(self) -> None:
        """Fail all records that no broker has acknowledged."""
        self._library.purge(self._handle, _PURGE_ALL)

    # Transactions -----------------------------------------------------------------------------

    def connect(self, topic: str, seconds: float) -> None:
        """Connect the handle to a broker by looking up a topic; ignore errors."""
        pointer = POINTER()
        until = int(seconds * 1000)
        if not self._library.metadata(self._handle, 0, self.topic(topic), c.byref(pointer), until):
            self._library.metadata_destroy(pointer)

    def init_transactions(self, seconds: float) -> None:
        self._check(self._library.init_transactions(self._handle, int(seconds * 1000)))

    def begin_transaction(self) -> None:
        self._check(self._library.begin_transaction(self._handle))

    def commit_transaction(self, seconds: float) -> None:
        self._check(self._library.commit_transaction(self._handle, int(seconds * 1000)))

    def abort_transaction(self, seconds: float) -> None:
        self._check(self._library.abort_transaction(self._handle, int(seconds * 1000)))

    def _check(self, error: int | None) -> None:
        if error is not None:
            raise KafkaException(self._as_exception(error))

    def _as_exception(self, error: int) -> KafkaError:
        api = self._library
        exception = KafkaError(
            api.error_code(error),
            api.error_string(error).decode(),
            bool(api.error_is_fatal(error)),
            bool(api.error_is_retriable(error)),
            bool(api.error_txn_requires_abort(error)),
        )
        api.error_destroy(error)
        return exception

    # Events -----------------------------------------------------------------------------------

    def poll(self, seconds: float) -> None:
        """Wait for an event and serve all events; raise any fatal error, even an earlier one."""
        wait = int(seconds * 1000)
        while event := self._library.queue_poll(self._queue, wait):
            wait = 0
            try:
                self._serve(event)
            finally:
                self._library.event_destroy(event)
        if self._memory and not self.unacknowledged:
            self._memory.clear()
        if (fatal := self._fatal()) is not None:
            raise KafkaException(fatal)

    def _fatal(self) -> KafkaError | None:
        """Return the fatal error that ended the producer, if there is one."""
        why = c.create_string_buffer(_TEXT)
        code = self._library.fatal_error(self._handle, why, _TEXT)
        return KafkaError(code, why.value.decode(errors="replace"), fatal=True) if code else None

    def _serve(self, event: int) -> None:
        kind = self._library.event_type(event)
        if kind == _DELIVERY:
            count = self._library.event_message_count(event)
            pointers = (POINTER * count)()
            self._library.event_message_array(event, pointers, count)
            for at in pointers:
                record = c.cast(at, c.POINTER(Message)).contents
                topic = self._library.topic_name(record.topic).decode()
                size = record.value_size + record.key_size
                self._on_failed(FailedRecord(record.error, topic, record.number, size))
        elif kind == _LOG:
            facility, line, level = TEXT(), TEXT(), INT()
            self._library.event_log(event, c.byref(facility), c.byref(line), c.byref(level))
            name = self._library.name(self._handle)
            parts = (text or b"" for text in (facility.value, name, line.value))
            self._on_log(
                _LEVELS[level.value],
                "{} [{}] {}".format(*(part.decode(errors="replace") for part in parts)),
            )
        elif kind == _ERROR:
            text = (self._library.event_error_string(event) or b"").decode(errors="replace")
            self._on_error(KafkaError(self._library.event_error(event), text))
        elif kind == _TOKEN:
            self._make_token(self._library.event_config_string(event))

    def _make_token(self, config: bytes | None) -> None:
        api, why = self._library, c.create_string_buffer(_TEXT)
        self.awaits_token = False
        try:
            made: tuple[Any, ...] = called(self._token, (config or b"").decode())
            token, expiry, principal, extensions = (*made, *_OF_TOKENS[len(made) - 2 :])
            pairs = [part.encode() for pair in dict(extensions).items() for part in pair]
            given = (TEXT * len(pairs))(*pairs)
            args = (token.encode(), int(expiry * 1000), str(principal).encode())
            refused = api.oauthbearer_set_token(self._handle, *args, given, len(pairs), why, _TEXT)
            failure = why.value if refused else None
        except Exception as error:  # noqa: BLE001 - librdkafka reports it, and asks again
            named = isinstance(error, TokenError | ConfigurationError)
            failure = (str(error) if named else f"oauth_cb failed: {error!r}").encode()
            self.awaits_token = isinstance(error, TokenError) and not error.permanent
        if failure is not None:
            api.oauthbearer_set_token_failure(self._handle, failure)


def _destroy(
    api: Any, handle: int, queue: int, topics: dict[str, int], memory: list[object], process: int
) -> None:
    # A forked process has none of librdkafka's threads, so don't wait for them there.
    if os.getpid() == process:
        for topic in topics.values():
            api.topic_destroy(topic)
        api.queue_destroy(queue)
        api.destroy(handle)
    memory.clear()
