"""Settings of a registry's client; keeps their secrets out of messages."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from spark_eos._client.urls import without_user_info
from spark_eos.errors import ConfigurationError
from spark_eos.schemas.formats import imported

_USER_INFO: Final = "basic.auth.user.info"
_ENDPOINT: Final = "bearer.auth.issuer.endpoint.url"
_PROXIES: Final = ("http", "https", "socks5", "socks5h")
_SECRETS: Final = ("password", "secret", "token", "user.info", "provider.config")
_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
# A variable that counts if there is no `ssl.ca.location`.
_CERT_FILE: Final = "SSL_CERT_FILE"
_DEFAULTS: Final = {"timeout": 10, "max.retries": 0}
_NUMBERS: Final = {
    "timeout",
    "max.retries",
    "retries.wait.ms",
    "retries.max.wait.ms",
    "cache.capacity",
    "cache.latest.ttl.sec",
}


class RegistrySettings:
    """Settings of confluent_kafka's SchemaRegistryClient; picklable."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        values = _DEFAULTS | {name: _value(name, value) for name, value in given.items()}
        if values.get("ssl.certificate.location") is not None:
            # Without any password, OpenSSL would ask for one on the terminal.
            values["ssl.key.password"] = values.get("ssl.key.password") or ""
        _check_files(values)
        self._secrets: set[str] = set()
        for name, value in values.items():
            if any(word in name for word in _SECRETS):
                for text in _texts(value):
                    self._keep_secret(text)
        # Keep user names out of the URL: the client passes URLs on to code that shows them.
        self.url = ""
        if isinstance(values.get("url"), str):
            values |= self._addressed(values["url"], values.get(_USER_INFO))
            self.url = values["url"]
        if isinstance(proxy := values.get("proxy"), str):
            self._keep_secret(without_user_info(proxy, "schema registry: proxy", _PROXIES)[1])
        if isinstance(endpoint := values.get(_ENDPOINT), str):
            name = f"schema registry: {_ENDPOINT}"
            if without_user_info(endpoint, name)[1]:
                raise ConfigurationError(
                    f"{name} contains a user name; set bearer.auth.client.id and "
                    "bearer.auth.client.secret"
                )
        self._values = values

    def client(self) -> Any:
        """Return a client of the registry, which the caller must close."""
        make = imported("confluent_kafka.schema_registry").SchemaRegistryClient
        try:
            return make(self._values)
        except OSError as error:
            # Its text names no file, and the registry is not at fault: waiting would not help.
            given = {name: self._values.get(name) for name in _FILES}
            if given["ssl.ca.location"] is None:
                given[_CERT_FILE] = os.environ.get(_CERT_FILE)
            files = [f"{name}={file}" for name, file in given.items() if file is not None]
            raise ValueError(
                f"the TLS files ({', '.join(files) or 'none is set'}) can't be used on this "
                f"machine: {error}"
            ) from None

    def clean(self, error: object) -> str:
        """Return the text of an error without secrets."""
        text = str(error) or type(error).__name__
        # Replace longer secrets first, since they may contain shorter ones.
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _addressed(self, urls: str, given: Any) -> dict[str, Any]:
        """Return the settings in the registry's comma-separated addresses, such as a user name."""
        split = [without_user_info(url, "schema registry: url") for url in urls.split(",")]
        secrets = {user_info for _, user_info in split if user_info}
        if (given and secrets) or len(secrets) > 1:
            raise ConfigurationError(
                "schema registry: url has a user name, and there is another one in "
                f"{_USER_INFO if given else 'another of its addresses'}: set only {_USER_INFO}"
            )
        settings = {"url": ",".join(address for address, _ in split)}
        for user_info in secrets:
            self._keep_secret(user_info)
            settings[_USER_INFO] = user_info if ":" in user_info else f"{user_info}:"
        return settings

    def _keep_secret(self, secret: str) -> None:
        """Hide a secret in messages; also hide a user name and its password separately."""
        parts = {secret, *secret.split(":", 1)}
        self._secrets |= {text for part in parts for text in (part, quote(part)) if len(text) > 2}


def _check_files(values: Mapping[str, Any]) -> None:
    """Refuse a PEM text that is given instead of a file's name."""
    for name in _FILES:
        if "-----BEGIN " in str(values.get(name)):
            # The message doesn't quote the text, which may be a private key.
            raise ConfigurationError(
                f"schema registry: {name} is a PEM text; it must be the name of a file"
            )


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a setting's value, which may be nested dicts and lists."""
    if isinstance(value, Mapping):
        value = [*value.values()]
    if not isinstance(value, list | tuple | set):
        yield str(value)
        return
    for item in value:
        yield from _texts(item)


def _value(name: str, value: Any) -> Any:
    """Return a setting's value; job options are strings even if the client needs a number."""
    if name in _NUMBERS and isinstance(value, str):
        with contextlib.suppress(ValueError):  # The client reports what it expects.
            return float(value) if "." in value else int(value)
    return value
