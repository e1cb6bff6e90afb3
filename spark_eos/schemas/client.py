"""Queries the schema registry for the driver and tasks; waits if it is down, and hides secrets."""

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import tenacity
from cachetools import LRUCache, TTLCache

from spark_eos._client.time_limit import within
from spark_eos.errors import ConfigurationError, RegistryError, SchemaError, warn
from spark_eos.schemas.formats import Schema, imported
from spark_eos.schemas.framing import SchemaKey
from spark_eos.schemas.registry_settings import RegistrySettings

Answer = TypeVar("Answer")

_CONFLUENT: Final = "confluent_kafka.schema_registry"
# The registry's own codes for an unknown subject, version or schema. Any other 404 may come from a
# proxy or a wrong path.
_NO_SCHEMA: Final = 40403
_UNKNOWN: Final = {40401, 40402, _NO_SCHEMA}
# Registries store ids as Java's int and refuse to look up larger ones.
_GREATEST: Final = 2**31 - 1
_NOT_FOUND: Final = 404
_INCOMPATIBLE: Final = 409
_INVALID: Final = {400, 422}
_REFUSED: Final = {401, 403}
_RETRIED: Final = {408, 429}
# Seconds before an unknown id is looked up again: a registry's followers get new schemas later.
_AGAIN_SECONDS: Final = 1.0
# Minimum number of seconds for an attempt, even if less of max_wait is left.
_LEAST_SECONDS: Final = 1.0
# What the client raises if the body of a successful answer is not JSON.
_NOT_JSON: Final = (json.JSONDecodeError, UnicodeDecodeError)
# Start of a subject in a context, as in ":.context:subject".
_CONTEXT: Final = ":."

logger = logging.getLogger(__name__)

# A client's identity, a subject in whose context an id is looked up, and the id or GUID.
_Place = tuple[str, str | None, SchemaKey]
# Shared by the tasks of a worker process.
_schemas: LRUCache[_Place, Schema] = LRUCache(1000)
# Unknown ids that were looked up twice, a moment apart, within the last minute.
_asked_twice: TTLCache[_Place, bool] = TTLCache(10_000, ttl=60)


@dataclass(frozen=True)
class Registered:
    """A schema in a subject, with its id and, if the registry has GUIDs, its GUID."""

    registry: str
    subject: str
    version: int
    number: int
    guid: str | None
    schema: Schema


class Client:
    """Queries a registry with the settings of confluent_kafka's SchemaRegistryClient; picklable."""

    def __init__(self, settings: Mapping[str, Any], max_wait: float) -> None:
        if not 0 <= max_wait <= threading.TIMEOUT_MAX:
            raise ConfigurationError(
                "max_wait must be a number of seconds from 0 to "
                f"{threading.TIMEOUT_MAX:.0f}, not {max_wait}"
            )
        self._settings = RegistrySettings(settings)
        self._max_wait = max_wait
        self._identity = uuid.uuid4().hex
        imported(_CONFLUENT)
        try:
            self._settings.client().close()
        except Exception as error:  # noqa: BLE001 - HTTP and token clients raise many types
            reason = self._settings.clean(error)
        else:
            return
        raise ConfigurationError(f"schema registry: {reason}")

    @property
    def url(self) -> str:
        """The registry's address, without user name and password."""
        return self._settings.url

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def schema(self, key: SchemaKey, subject: str | None = None) -> Schema | None:
        """Return the schema of an id or GUID; None if the registry does not know it."""
        return self.schemas([key], subject)[key]

    def schemas(
        self, keys: Iterable[SchemaKey], subject: str | None = None
    ) -> dict[SchemaKey, Schema | None]:
        """Return the schemas of ids (in the subject's context) and of GUIDs; None if unknown."""
        places = {key: (self._identity, subject, key) for key in keys}
        schemas = {key: _schemas.get(place) for key, place in places.items()}
        asked = [key for key, known in schemas.items() if known is None and _may_be_known(key)]
        schemas |= self._look_up(asked, subject)
        fresh = {places[key]: True for key in asked if schemas[key] is None}
        if fresh.keys() - _asked_twice.keys():
            time.sleep(_AGAIN_SECONDS)
            schemas |= self._look_up([key for *_, key in fresh], subject)
            _asked_twice.update(fresh)
        return schemas

    def _look_up(
        self, keys: Iterable[SchemaKey], subject: str | None
    ) -> dict[SchemaKey, Schema | None]:
        """Look up schemas one by one; cache each answer even if a later request fails."""
        schemas: dict[SchemaKey, Schema | None] = {}
        with closing(_Connection(self._settings)) as connection:
            for key in keys:
                ask = partial(self._by_key, key=key, subject=subject)
                schemas[key] = schema = self._asked(ask, f"schema id {key}", connection)
                if schema is not None:
                    _schemas[self._identity, subject, key] = schema
        return schemas

    def version(self, subject: str, version: int | None) -> Registered:
        """Return a subject's version, the latest if None; raise SchemaError if there is none."""

        def ask(client: Any) -> Registered:
            if version is None:
                return self._registered(client, subject, client.get_latest_version(subject))
            return self._registered(client, subject, client.get_version(subject, version))

        schema = self._asked_about(subject, ask)
        if schema is None:
            what = "" if version is None else f" with version {version}"
            raise SchemaError(
                f"{self.url} has no subject {subject!r}{what}. Subjects are usually called "
                "<topic>-value or <topic>-key; encode(..., schema=text, register=True) creates one"
            )
        return schema

    def registered(self, subject: str, schema: Schema, *, register: bool) -> Registered:
        """Return a schema of a subject; with ``register``, register it first."""
        text = imported(_CONFLUENT).Schema(schema.text, schema.kind)

        def ask(client: Any) -> Registered:
            if register:
                client.register_schema_full_response(subject, text)
            try:
                found = client.lookup_schema(subject, text)
            except _registry_error() as error:
                if register and error.error_code in _UNKNOWN:
                    # A registry's followers get new schemas later, so wait.
                    raise OSError("it does not have the schema that it has registered") from None
                raise
            return self._registered(client, subject, found)

        version = self._asked_about(subject, ask)
        if version is None:
            raise SchemaError(
                f"subject {subject!r} does not have the given schema; register=True registers it"
            )
        return version

    def _by_key(self, client: Any, key: SchemaKey, subject: str | None) -> Schema | None:
        is_id = isinstance(key, int)
        try:
            answer = (
                client.get_schema(key, subject) if is_id else client.get_schema_by_guid(str(key))
            )
        except _registry_error() as failed:
            if failed.error_code == _NO_SCHEMA:
                return None
            if is_id or failed.http_status_code != _NOT_FOUND:
                raise
            # Most registries have no GUIDs, and a record may have bytes that look like a GUID. If
            # this request succeeds, the registry is working, and the GUID is unknown.
            client.get_schema_types()
            return None
        return _schema(client, answer, subject)

    def _registered(self, client: Any, subject: str, answer: Any) -> Registered:
        schema = _schema(client, answer.schema, subject)
        return Registered(self.url, subject, answer.version, answer.schema_id, answer.guid, schema)

    def _asked_about(self, subject: str, ask: Callable[[Any], Answer]) -> Answer | None:
        """Return the answer about a subject; None for an unknown subject, version or schema."""

        def attempt(client: Any) -> Answer | None:
            try:
                return ask(client)
            except _registry_error() as error:
                if not isinstance(error.error_code, int) or error.error_code < 0:
                    raise  # The answer is not from the registry.
                if error.error_code in _UNKNOWN:
                    return None
                reason = self._settings.clean(error.error_message)
                if error.http_status_code == _INCOMPATIBLE:
                    raise SchemaError(
                        f"subject {subject!r} does not accept the schema, which is not compatible "
                        f"with its earlier ones: {reason}"
                    ) from None
                if error.http_status_code in _INVALID:
                    raise SchemaError(f"subject {subject!r}: {reason}") from None
                raise

        with closing(_Connection(self._settings)) as connection:
            return self._asked(attempt, f"subject {subject!r}", connection)

    def _asked(self, ask: Callable[[Any], Answer], what: str, connection: "_Connection") -> Answer:
        """Return the registry's answer; retry, and raise RegistryError after max_wait."""
        end = time.monotonic() + self._max_wait
        backoff = tenacity.wait_random_exponential(0.5, max=10)
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_delay(self._max_wait),
            wait=lambda state: min(backoff(state), max(0, end - time.monotonic())),
            retry=tenacity.retry_if_exception(_may_pass),
            before_sleep=self._warn_once,
            reraise=True,
        )
        try:
            return retrying(
                lambda: connection.ask(ask, max(end - time.monotonic(), _LEAST_SECONDS))
            )
        except SchemaError:
            raise
        except Exception as error:  # noqa: BLE001 - HTTP and token clients raise many types
            failure = error
        waited = f", for {self._max_wait:g} s (max_wait)" if _may_pass(failure) else ""
        # Hide the original error, since its traceback may show settings.
        raise RegistryError(
            f"schema registry {self.url}, asked for {what}: {type(failure).__name__}: "
            f"{self._settings.clean(failure)}{waited}{_hint(failure)}"
        ) from None

    def _warn_once(self, state: tenacity.RetryCallState) -> None:
        if state.attempt_number != 2 or state.outcome is None:
            return
        failure = self._settings.clean(state.outcome.exception())
        warn(
            logger,
            "EOS60",
            "schema registry %s does not answer: %s; waiting up to %g s (max_wait)",
            *(self.url, failure, self._max_wait),
        )


class _Connection:
    """A connection for several requests in a row; closed afterwards, since requests are rare."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._client: Any = None

    def ask(self, question: Callable[[Any], Answer], seconds: float) -> Answer:
        """Connect if necessary, and return the answer; raise TimeoutError after ``seconds``."""
        client = self._client = self._client or self._settings.client()
        try:
            # The client's own `timeout` never expires if the registry sends a byte now and then.
            return within(seconds, lambda: question(client), "schema-registry")
        except Exception:
            self.close()  # This also ends a request that is still waiting.
            raise

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def context_of(subject: str) -> str:
    """Return the context of a subject, with its colons; "" for the default context."""
    if not subject.startswith(_CONTEXT):
        return ""
    context = subject[1:].partition(":")[0]
    return "" if context == "." else f":{context}:"


def _schema(client: Any, answer: Any, subject: str | None) -> Schema:
    """Return a schema from the registry's answer, with the schemas that it refers to."""
    if not isinstance(answer.schema_str, str):
        raise OSError("the registry's answer has no schema")
    references: dict[str, str] = {}
    _resolve(client, answer, context_of(subject or ""), references)
    return Schema(answer.schema_type or "AVRO", answer.schema_str, (*references.items(),))


def _resolve(client: Any, schema: Any, context: str, resolved: dict[str, str]) -> None:
    """Add the schemas that a schema refers to, directly or not, to ``resolved``, deepest first."""
    for reference in schema.references or ():
        if reference.name not in resolved:
            own = context_of(reference.subject) or context
            subject = own + reference.subject.removeprefix(own)
            try:
                other = client.get_version(subject, reference.version, True)  # noqa: FBT003
            except _registry_error() as error:
                if error.error_code not in _UNKNOWN:
                    raise
                raise ValueError(
                    f"the schema refers to version {reference.version} of subject {subject!r}, "
                    "which the registry does not have"
                ) from None
            _resolve(client, other.schema, own, resolved)
            resolved[reference.name] = other.schema.schema_str


def _may_be_known(key: SchemaKey) -> bool:
    return not isinstance(key, int) or key <= _GREATEST


def _registry_error() -> Any:
    return imported(f"{_CONFLUENT}.error").SchemaRegistryError


def _hint(error: Exception) -> str:
    """Return a hint if something other than a registry seems to have answered."""
    status = getattr(error, "http_status_code", None)
    if isinstance(error, _NOT_JSON) or (
        status is not None and status not in _REFUSED and not _may_pass(error)
    ):
        return ". Does the setting `url` point to the registry itself, and include its whole path?"
    return ""


def _may_pass(error: BaseException) -> bool:
    """Return True if a failure may be temporary."""
    status = getattr(error, "http_status_code", None)
    if status is not None:
        return status in _RETRIED or status >= 500
    if isinstance(error, _NOT_JSON):
        return True  # A proxy has answered with a page and a success status.
    # The client raises these errors before it sends a request.
    return not isinstance(error, ValueError | TypeError | ConfigurationError)
