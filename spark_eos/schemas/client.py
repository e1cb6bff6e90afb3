"""The registry as tasks and the driver ask it: waits while it is away, and never shows a secret."""

import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import tenacity
from cachetools import LRUCache, TTLCache

from spark_eos.errors import ConfigurationError, RegistryError, SchemaError, warn
from spark_eos.schemas.formats import Schema, imported
from spark_eos.schemas.framing import SchemaKey

Answer = TypeVar("Answer")

_CONFLUENT: Final = "confluent_kafka.schema_registry"
_SECRETS: Final = ("password", "secret", "token", "user.info")
# The registry's own codes: a subject, a version, a schema that it does not have. Another 404 may
# come from a proxy, or from a wrong path.
_NO_SCHEMA: Final = 40403
_UNKNOWN: Final = {40401, 40402, _NO_SCHEMA}
# Registries have ids as Java's int, and refuse to look for others.
_GREATEST: Final = 2**31 - 1
_NOT_FOUND: Final = 404
_INCOMPATIBLE: Final = 409
_INVALID: Final = {400, 422}
_REFUSED: Final = {401, 403}
_RETRIED: Final = {408, 429}
_DEFAULTS: Final = {"timeout": 10, "max.retries": 0}
_NUMBERS: Final = {
    "timeout",
    "max.retries",
    "retries.wait.ms",
    "retries.max.wait.ms",
    "cache.capacity",
    "cache.latest.ttl.sec",
}
# A registry's followers learn of a new schema a moment after it was registered.
_AGAIN_SECONDS: Final = 1.0

logger = logging.getLogger(__name__)

# Of this process, by registry object and id: a worker process runs many tasks.
_schemas: LRUCache[tuple[str, SchemaKey], Schema] = LRUCache(1000)
# Asked for twice, a moment apart, not long ago.
_asked_twice: TTLCache[tuple[str, SchemaKey], bool] = TTLCache(10_000, ttl=60)


@dataclass(frozen=True)
class Registered:
    """A schema as a subject has it, with its id and, if the registry has such, its GUID."""

    registry: str
    subject: str
    version: int
    number: int
    guid: str | None
    schema: Schema


class Client:
    """Asks a registry, by the settings of confluent_kafka's SchemaRegistryClient; picklable."""

    def __init__(self, settings: Mapping[str, Any], max_wait: float) -> None:
        self._settings = _DEFAULTS | {
            name: _setting(name, value) for name, value in settings.items()
        }
        self._max_wait = max_wait
        self._identity = uuid.uuid4().hex
        module = imported(_CONFLUENT)
        try:
            module.SchemaRegistryClient(self._settings).close()
        except (ValueError, TypeError, OSError) as error:
            raise ConfigurationError(f"schema registry: {self._clean(error)}") from None

    @property
    def url(self) -> str:
        """Its address, without user and password."""
        given = str(self._settings["url"]).split(",")
        return ",".join(one.replace(f"{_userinfo(one)}@", "") for one in map(str.strip, given))

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def schema(self, key: SchemaKey) -> Schema | None:
        """The schema of an id or GUID; None if the registry does not know it."""
        return self.schemas([key])[key]

    def schemas(self, keys: Iterable[SchemaKey]) -> dict[SchemaKey, Schema | None]:
        """The schemas of ids and GUIDs; None for those that the registry does not know now."""
        found = {key: _schemas.get((self._identity, key)) for key in keys}
        asked = [key for key, one in found.items() if one is None and _may_be_known(key)]
        self._look_up([*asked], found)
        fresh = {(self._identity, key): True for key in asked if found[key] is None}
        if fresh.keys() - _asked_twice.keys():
            time.sleep(_AGAIN_SECONDS)
            self._look_up([key for _, key in fresh], found)
            _asked_twice.update(fresh)
        return found

    def _look_up(self, keys: list[SchemaKey], found: dict[SchemaKey, Schema | None]) -> None:
        """Asks for schemas; each answer is kept, if the registry goes away before the next."""

        def ask(client: Any) -> None:
            while keys:
                found[keys[0]] = schema = self._by_key(client, keys[0])
                if schema is not None:
                    _schemas[self._identity, keys[0]] = schema
                keys.pop(0)

        if keys:
            self._asked(ask, lambda: f"schema id {keys[0]}")

    def version(self, subject: str, version: int | None) -> Registered:
        """A version of a subject; the latest one if None."""

        def ask(client: Any) -> Registered:
            if version is None:
                return self._registered(client, client.get_latest_version(subject))
            return self._registered(client, client.get_version(subject, version))

        found = self._asked_about(subject, ask)
        if found is None:
            what = "" if version is None else f" with version {version}"
            raise SchemaError(
                f"{self.url} has no subject {subject!r}{what}. Subjects are mostly called "
                "<topic>-value or <topic>-key; encode(..., schema=text, register=True) makes one"
            )
        return found

    def registered(self, subject: str, schema: Schema, *, register: bool) -> Registered:
        """A schema as a subject has it, or as it gets it now."""
        text = imported(_CONFLUENT).Schema(schema.text, schema.kind)

        def ask(client: Any) -> Registered:
            if register:
                client.register_schema_full_response(subject, text)
            return self._registered(client, client.lookup_schema(subject, text))

        found = self._asked_about(subject, ask)
        if found is None:
            raise SchemaError(
                f"subject {subject!r} does not have the schema that is given; "
                "register=True registers it"
            )
        return found

    def _by_key(self, client: Any, key: SchemaKey) -> Schema | None:
        is_id = isinstance(key, int)
        try:
            found = client.get_schema(key) if is_id else client.get_schema_by_guid(str(key))
        except _registry_error() as failed:
            if failed.error_code == _NO_SCHEMA:
                return None
            if is_id or failed.http_status_code != _NOT_FOUND:
                raise
            # Most registries have no GUIDs. Then they do not know this one; a record may have
            # bytes that look like one. This shows that the registry is there.
            client.get_schema_types()
            return None
        return self._schema(client, found)

    def _registered(self, client: Any, found: Any) -> Registered:
        schema = self._schema(client, found.schema)
        ids = found.version, found.schema_id, found.guid
        return Registered(self.url, found.subject, *ids, schema)

    def _schema(self, client: Any, found: Any) -> Schema:
        if not isinstance(found.schema_str, str):
            raise OSError("the registry's answer has no schema")
        references: dict[str, str] = {}
        _resolve(client, found, references)
        return Schema(found.schema_type or "AVRO", found.schema_str, (*references.items(),))

    def _asked_about(self, subject: str, ask: Callable[[Any], Answer]) -> Answer | None:
        """What a question about a subject yields; None if the registry has no such thing."""

        def attempt(client: Any) -> Answer | None:
            try:
                return ask(client)
            except _registry_error() as error:
                if error.error_code in _UNKNOWN:
                    return None
                told = self._clean(error.error_message)
                if (error.error_code or -1) < 0:
                    raise  # Not the registry's answer.
                if error.http_status_code == _INCOMPATIBLE:
                    raise SchemaError(
                        f"subject {subject!r} does not take the schema, which is not compatible "
                        f"with its earlier ones: {told}"
                    ) from None
                if error.http_status_code in _INVALID:
                    raise SchemaError(f"subject {subject!r}: {told}") from None
                raise

        return self._asked(attempt, lambda: f"subject {subject!r}")

    def _asked(self, ask: Callable[[Any], Answer], what: Callable[[], str]) -> Answer:
        """What a question yields, once the registry has answered."""
        module = imported(_CONFLUENT)
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_delay(self._max_wait),
            wait=tenacity.wait_random_exponential(0.5, max=10),
            retry=tenacity.retry_if_exception(_may_pass),
            before_sleep=self._say,
            reraise=True,
        )

        def attempt() -> Answer:
            # Each question has a connection of its own: there are few.
            with module.SchemaRegistryClient(self._settings) as client:
                return ask(client)

        try:
            return retrying(attempt)
        except SchemaError:
            raise
        except Exception as error:  # noqa: BLE001 - of clients for HTTP and for tokens
            failure = error
        waited = f", for {self._max_wait:g} s (max_wait)" if _may_pass(failure) else ""
        # Not from it: its traceback may show what the settings hold.
        raise RegistryError(
            f"schema registry {self.url}, asked for {what()}: {type(failure).__name__}: "
            f"{self._clean(failure)}{waited}{_hint(failure)}"
        ) from None

    def _say(self, state: tenacity.RetryCallState) -> None:
        if state.attempt_number != 2 or state.outcome is None:
            return
        warn(
            logger,
            "EOS60",
            "schema registry %s does not answer: %s; waiting up to %g s (max_wait)",
            *(self.url, self._clean(state.outcome.exception()), self._max_wait),
        )

    def _clean(self, error: object) -> str:
        """The text of an error, with no secret in it."""
        text = str(error) or type(error).__name__
        for secret in self._secrets():
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> set[str]:
        found = {_userinfo(one) for one in str(self._settings.get("url", "")).split(",")}
        for name, value in self._settings.items():
            if isinstance(value, str) and any(word in name for word in _SECRETS):
                found.add(value)
        halves = {half for one in found for half in one.split(":", 1)}
        return {one for one in found | halves if len(one) > 2}


def _resolve(client: Any, schema: Any, found: dict[str, str]) -> None:
    """Adds the schemas that a schema refers to, the deepest ones first."""
    for reference in schema.references or ():
        if reference.name not in found:
            subject, version = reference.subject, reference.version
            try:
                other = client.get_version(subject, version, True)  # noqa: FBT003
            except _registry_error() as error:
                if error.error_code not in _UNKNOWN:
                    raise
                raise ValueError(
                    f"the schema refers to version {version} of subject {subject!r}, which the "
                    "registry does not have"
                ) from None
            _resolve(client, other.schema, found)
            found[reference.name] = other.schema.schema_str


def _setting(name: str, value: Any) -> Any:
    """A setting's value; options of jobs are texts, also where the client wants a number."""
    if name in _NUMBERS and isinstance(value, str):
        with contextlib.suppress(ValueError):  # Else the client says what it wants.
            return float(value) if "." in value else int(value)
    return value


def _may_be_known(key: SchemaKey) -> bool:
    return not isinstance(key, int) or key <= _GREATEST


def _userinfo(url: str) -> str:
    return urlsplit(url.strip()).netloc.rpartition("@")[0]


def _registry_error() -> Any:
    return imported(f"{_CONFLUENT}.error").SchemaRegistryError


def _hint(error: Exception) -> str:
    """Where to look, if something else than a registry seems to have answered."""
    status = getattr(error, "http_status_code", None)
    if isinstance(error, json.JSONDecodeError) or (
        status is not None and status not in _REFUSED and not _may_pass(error)
    ):
        return ". Does the setting `url` lead to the registry itself, with its whole path?"
    return ""


def _may_pass(error: BaseException) -> bool:
    """Whether a failure may pass by itself."""
    status = getattr(error, "http_status_code", None)
    if status is not None:
        return status in _RETRIED or status >= 500
    if isinstance(error, json.JSONDecodeError):
        return True  # A proxy's page, with a status that says that all is well.
    # What the client refuses before it asks.
    return not isinstance(error, ValueError | TypeError | ConfigurationError)
