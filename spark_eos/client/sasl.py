"""SASL settings: who a client says it is, for librdkafka, kafka-python and Java."""

import ipaddress
import os
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spark_eos.client.jaas import JaasError, JaasLine, parse_jaas
from spark_eos.client.oauth import (
    ClientCredentials,
    MskIam,
    TokenFunction,
    TokenProvider,
    msk_region,
    msk_signer,
)
from spark_eos.client.tls import java_trust, pem
from spark_eos.errors import ConfigurationError

MSK_IAM: Final = "AWS_MSK_IAM"
_BY_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_OIDC: Final = "sasl.oauthbearer."
_NEEDED: Final = ("client.id", "client.secret", "token.endpoint.url")
_GRANT: Final = "client_credentials"
NAMES: Final = frozenset(
    {
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "sasl.jaas.config",
        "oauth_cb",
        "https.ca.location",
        "https.ca.pem",
        *(_OIDC + name for name in (*_NEEDED, "method", "scope", "extensions", "grant.type")),
        # With oauth_cb: what it is called with.
        f"{_OIDC}config",
    }
)
_LOGIN_HANDLER: Final = "sasl.login.callback.handler.class"
_SECURITY: Final = "org.apache.kafka.common.security"
_PLAIN: Final = f"{_SECURITY}.plain.PlainLoginModule"
_SCRAM: Final = f"{_SECURITY}.scram.ScramLoginModule"
_OAUTH: Final = f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule"
_OAUTH_HANDLER: Final = f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
_MSK: Final = "software.amazon.msk.auth.iam.IAMLoginModule"
_MSK_HANDLER: Final = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
# Options of Amazon's login module, by what they are here.
_MSK_OPTIONS: Final = {
    "awsProfileName": "profile",
    "awsRoleArn": "role",
    "awsRoleSessionName": "session",
}


@dataclass(frozen=True)
class Sasl:
    """A mechanism and what it needs.

    Attributes:
        mechanism: Kafka's name of it, or `MSK_IAM`.
        username: for PLAIN and SCRAM.
        password: likewise.
        credentials: for OAUTHBEARER by client credentials.
        function: makes tokens for OAUTHBEARER and MSK.
        config: what the function is called with.
        extensions: SASL extensions for OAUTHBEARER.
        module: Java's login module.
    """

    mechanism: str
    module: str
    username: str = ""
    password: str = field(default="", repr=False)
    credentials: ClientCredentials | None = None
    function: TokenFunction | None = field(default=None, repr=False)
    config: str = field(default="", repr=False)
    extensions: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def needs_java_handler(self) -> bool:
        """Whether Spark's source can't log in by itself: it can't call Python."""
        return self.function is not None and self.mechanism != MSK_IAM

    def for_librdkafka(self) -> dict[str, Any]:
        """Settings of librdkafka."""
        if self.mechanism in _BY_PASSWORD:
            return {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.username,
                "sasl.password": self.password,
            }
        settings: dict[str, Any] = {"sasl.mechanism": "OAUTHBEARER"}
        found = self.credentials
        if found is None:
            return {**settings, "oauth_cb": self.function, f"{_OIDC}config": self.config}
        settings[f"{_OIDC}method"] = "oidc"
        settings[f"{_OIDC}client.id"] = found.client_id
        settings[f"{_OIDC}client.secret"] = found.client_secret
        settings[f"{_OIDC}token.endpoint.url"] = found.endpoint
        if found.scope is not None:
            settings[f"{_OIDC}scope"] = found.scope
        if self.extensions:
            settings[f"{_OIDC}extensions"] = ",".join("=".join(pair) for pair in self.extensions)
        if found.authorities is not None:
            settings["https.ca.pem"] = found.authorities
        return settings

    def for_wire(self) -> dict[str, Any]:
        """Settings of kafka-python."""
        if self.mechanism in _BY_PASSWORD:
            username = self.username
            if self.mechanism != "PLAIN":
                # kafka-python leaves to its caller what RFC 5802 (section 5.1) asks for.
                username = username.replace("=", "=3D").replace(",", "=2C")
            return {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": username,
                "sasl_plain_password": self.password,
            }
        function = self.function or self.credentials
        if function is None:
            raise ConfigurationError("OAUTHBEARER needs client credentials or oauth_cb")
        provider = TokenProvider(function, self.config, dict(self.extensions))
        return {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider}

    def for_java(self) -> dict[str, str]:
        """Settings of Kafka's Java clients."""
        if self.mechanism in _BY_PASSWORD:
            line = JaasLine(self.module, {"username": self.username, "password": self.password})
            return {"sasl.mechanism": self.mechanism, "sasl.jaas.config": line.render()}
        if isinstance(self.function, MskIam):
            given = {
                name: getattr(self.function, here)
                for name, here in _MSK_OPTIONS.items()
                if getattr(self.function, here) is not None
            }
            return {
                "sasl.mechanism": MSK_IAM,
                "sasl.jaas.config": JaasLine(self.module, given).render(),
                "sasl.client.callback.handler.class": _MSK_HANDLER,
            }
        # Of a JAAS line Spark's log leaves out all that comes after password=; Kafka ignores it.
        options = {"password": ""}
        options |= {f"extension_{name}": value for name, value in self.extensions}
        settings = {"sasl.mechanism": "OAUTHBEARER"}
        if self.credentials is not None:
            found = self.credentials
            options["clientId"] = found.client_id
            options["clientSecret"] = found.client_secret
            if found.scope is not None:
                options["scope"] = found.scope
            if found.authorities is not None:
                options |= java_trust(found.authorities)
            settings[f"{_OIDC}token.endpoint.url"] = found.endpoint
            settings[_LOGIN_HANDLER] = _shaded(_OAUTH_HANDLER)
        settings["sasl.jaas.config"] = JaasLine(self.module, options).render()
        return settings


def _shaded(name: str) -> str:
    # Databricks renames the packages of the Kafka client that its Spark reads with.
    return f"kafkashaded.{name}" if "DATABRICKS_RUNTIME_VERSION" in os.environ else name


def sasl(settings: Mapping[str, Any]) -> Sasl:
    """SASL as the settings say.

    Raises:
        ConfigurationError: a setting is missing or can't be used.
    """
    given = settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))
    line = _jaas(settings)
    if given is None:
        raise ConfigurationError(
            f"kafka needs 'sasl.mechanism': {', '.join(_BY_PASSWORD)}, OAUTHBEARER or {MSK_IAM}"
        )
    mechanism = str(given).upper()
    if mechanism in _BY_PASSWORD:
        return _by_password(mechanism, settings, line)
    if mechanism == MSK_IAM:
        return _msk(settings, line)
    if mechanism == "OAUTHBEARER":
        if line is not None:
            raise ConfigurationError(
                "kafka['sasl.jaas.config'] is taken for PLAIN and SCRAM; for OAUTHBEARER set "
                f"{_OIDC}method=oidc with {_OIDC}client.id, .client.secret and "
                ".token.endpoint.url, or oauth_cb"
            )
        return _oauth(settings)
    raise ConfigurationError(
        f"kafka['sasl.mechanism'] = {mechanism!r} is not supported; use one of "
        f"{', '.join(_BY_PASSWORD)}, OAUTHBEARER and {MSK_IAM}"
    )


def _jaas(settings: Mapping[str, Any]) -> JaasLine | None:
    text = settings.get("sasl.jaas.config")
    if text is None:
        return None
    try:
        return parse_jaas(str(text))
    except JaasError as error:
        raise ConfigurationError(f"kafka['sasl.jaas.config']: {error}") from None


def _by_password(mechanism: str, settings: Mapping[str, Any], line: JaasLine | None) -> Sasl:
    module = _PLAIN if mechanism == "PLAIN" else _SCRAM
    if line is None:
        user = {name: settings.get(f"sasl.{name}") for name in ("username", "password")}
        missing = [f"'sasl.{name}'" for name, text in user.items() if text is None]
        if missing:
            raise ConfigurationError(
                f"kafka needs {' and '.join(missing)} for sasl.mechanism={mechanism}"
            )
        return Sasl(
            mechanism,
            _shaded(module),
            username=str(user["username"]),
            password=str(user["password"]),
        )
    if "sasl.username" in settings or "sasl.password" in settings:
        raise ConfigurationError(
            "kafka: give sasl.username and sasl.password, or sasl.jaas.config, not both"
        )
    if not f".{line.module}".endswith(f".{module}"):
        raise ConfigurationError(
            f"kafka['sasl.jaas.config'] names the login module {line.module}; "
            f"sasl.mechanism={mechanism} needs {module}"
        )
    if line.options.keys() != {"username", "password"}:
        raise ConfigurationError(
            "kafka['sasl.jaas.config'] must have the options username and password, and no "
            f"others, not {', '.join(sorted(line.options)) or 'none'}"
        )
    return Sasl(
        mechanism,
        line.module,
        username=line.options["username"],
        password=line.options["password"],
    )


def _msk(settings: Mapping[str, Any], line: JaasLine | None) -> Sasl:
    options = {} if line is None else dict(line.options)
    unknown = sorted(options.keys() - _MSK_OPTIONS.keys())
    if unknown or (line is not None and line.module != _MSK):
        raise ConfigurationError(
            f"kafka['sasl.jaas.config'] for {MSK_IAM} must be '{_MSK} required' with none but "
            f"the options {', '.join(_MSK_OPTIONS)}"
        )
    msk_signer()
    region = msk_region(str(settings.get("bootstrap.servers", "")))
    function = MskIam(region, **{_MSK_OPTIONS[name]: text for name, text in options.items()})
    return Sasl(MSK_IAM, _MSK, function=function)


def _oauth(settings: Mapping[str, Any]) -> Sasl:
    function = settings.get("oauth_cb")
    if function is not None:
        given = sorted(n for n in settings if n.startswith(_OIDC) and n != f"{_OIDC}config")
        if given:
            raise ConfigurationError(f"kafka: give oauth_cb or {given[0]}, not both")
        config = str(settings.get(f"{_OIDC}config", ""))
        return Sasl("OAUTHBEARER", _shaded(_OAUTH), function=function, config=config)
    if str(settings.get(f"{_OIDC}method", "")).lower() != "oidc":
        raise ConfigurationError(
            f"kafka: sasl.mechanism=OAUTHBEARER needs {_OIDC}method=oidc, with {_OIDC}client.id, "
            ".client.secret and .token.endpoint.url, or a token function as oauth_cb"
        )
    missing = [f"'{_OIDC}{name}'" for name in _NEEDED if not settings.get(_OIDC + name)]
    if missing:
        raise ConfigurationError(f"kafka needs {', '.join(missing)} for OAUTHBEARER")
    if settings.get(f"{_OIDC}grant.type", _GRANT) != _GRANT:
        raise ConfigurationError(f"kafka['{_OIDC}grant.type'] must be {_GRANT!r}")
    endpoint = str(settings[f"{_OIDC}token.endpoint.url"])
    _check_endpoint(endpoint)
    scope = settings.get(f"{_OIDC}scope")
    return Sasl(
        "OAUTHBEARER",
        _shaded(_OAUTH),
        credentials=ClientCredentials(
            endpoint,
            str(settings[f"{_OIDC}client.id"]),
            str(settings[f"{_OIDC}client.secret"]),
            None if scope is None else str(scope),
            pem(settings, "https.ca"),
        ),
        extensions=_extensions(str(settings.get(f"{_OIDC}extensions", ""))),
    )


def _check_endpoint(endpoint: str) -> None:
    try:
        url = urllib.parse.urlsplit(endpoint)
        host = url.hostname or ""
    except ValueError:
        raise ConfigurationError(f"kafka['{_OIDC}token.endpoint.url'] is no URL") from None
    if url.scheme not in {"https", "http"} or not host:
        raise ConfigurationError(f"kafka['{_OIDC}token.endpoint.url'] must be an https URL")
    if url.username is not None:
        raise ConfigurationError(
            f"kafka['{_OIDC}token.endpoint.url'] has a user name in it; set {_OIDC}client.id and "
            f"{_OIDC}client.secret"
        )
    if url.scheme == "http" and not _is_loopback(host):
        raise ConfigurationError(
            f"kafka['{_OIDC}token.endpoint.url'] must be an https URL: the client secret is sent "
            "there (http is for this host alone, such as http://localhost:8080/token)"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _extensions(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if not all(name and equals for name, equals, _ in pairs):
        raise ConfigurationError(f"kafka['{_OIDC}extensions'] must be key=value,key=value")
    return tuple((name.strip(), value) for name, _, value in pairs)
