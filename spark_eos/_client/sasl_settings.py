"""Checks SASL settings, given by librdkafka's names or as a JAAS line, and builds a `Sasl`."""

import ssl
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from spark_eos._client.checks import is_loopback
from spark_eos._client.jaas import JaasError, JaasLine, parse_jaas
from spark_eos._client.oauth import ClientCredentials, MskIam, msk_region, msk_signer
from spark_eos._client.sasl import (
    BY_PASSWORD,
    MSK_IAM,
    MSK_OPTIONS,
    OAUTHBEARER,
    OIDC,
    Grant,
    Msk,
    Password,
    Sasl,
    TokenCallback,
    shaded,
)
from spark_eos._client.tls import pem, trust
from spark_eos._client.urls import without_user_info
from spark_eos.errors import ConfigurationError

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
        *(OIDC + name for name in (*_NEEDED, "method", "scope", "extensions", "grant.type")),
        # The argument of oauth_cb.
        f"{OIDC}config",
    }
)
_SECURITY: Final = "org.apache.kafka.common.security"
_PLAIN: Final = f"{_SECURITY}.plain.PlainLoginModule"
_SCRAM: Final = f"{_SECURITY}.scram.ScramLoginModule"
_OAUTH: Final = f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule"
_MSK: Final = "software.amazon.msk.auth.iam.IAMLoginModule"


def sasl(settings: Mapping[str, Any]) -> Sasl:
    given = settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))
    if settings.get("sasl.mechanisms", given) != given:
        raise ConfigurationError("kafka: set sasl.mechanism or sasl.mechanisms, not both")
    line = _jaas(settings)
    if given is None:
        raise ConfigurationError(
            f"kafka needs 'sasl.mechanism': {', '.join(BY_PASSWORD)}, OAUTHBEARER or {MSK_IAM}"
        )
    mechanism = str(given).upper()
    if mechanism in BY_PASSWORD:
        return _by_password(mechanism, settings, line)
    if mechanism == MSK_IAM:
        return _msk(settings, line)
    if mechanism == OAUTHBEARER:
        if line is not None:
            raise ConfigurationError(
                "kafka['sasl.jaas.config'] works for PLAIN and SCRAM only; for OAUTHBEARER set "
                f"{OIDC}method=oidc with {OIDC}client.id, .client.secret and "
                ".token.endpoint.url, or oauth_cb"
            )
        return _oauth(settings)
    raise ConfigurationError(
        f"kafka['sasl.mechanism'] = {mechanism!r} is not supported; use one of "
        f"{', '.join(BY_PASSWORD)}, OAUTHBEARER and {MSK_IAM}"
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
        return Password(mechanism, shaded(module), str(user["username"]), str(user["password"]))
    if "sasl.username" in settings or "sasl.password" in settings:
        raise ConfigurationError(
            "kafka: set sasl.username and sasl.password, or sasl.jaas.config, not both"
        )
    if not f".{line.module}".endswith(f".{module}"):
        raise ConfigurationError(
            f"kafka['sasl.jaas.config'] names the login module {line.module}; "
            f"sasl.mechanism={mechanism} needs {module}"
        )
    if line.options.keys() != {"username", "password"}:
        raise ConfigurationError(
            "kafka['sasl.jaas.config'] must have exactly the options username and password, "
            f"not {', '.join(sorted(line.options)) or 'none'}"
        )
    return Password(mechanism, line.module, line.options["username"], line.options["password"])


def _msk(settings: Mapping[str, Any], line: JaasLine | None) -> Sasl:
    options = {} if line is None else dict(line.options)
    unknown = sorted(options.keys() - MSK_OPTIONS.keys())
    if unknown or (line is not None and line.module != _MSK):
        raise ConfigurationError(
            f"kafka['sasl.jaas.config'] for {MSK_IAM} must be '{_MSK} required' with no options "
            f"except {', '.join(MSK_OPTIONS)}"
        )
    msk_signer()
    region = msk_region(str(settings.get("bootstrap.servers", "")))
    function = MskIam(region, **{MSK_OPTIONS[name]: text for name, text in options.items()})
    return Msk(_MSK, function)


def _oauth(settings: Mapping[str, Any]) -> Sasl:
    function = settings.get("oauth_cb")
    if function is not None:
        given = sorted(n for n in settings if n.startswith(OIDC) and n != f"{OIDC}config")
        if given:
            raise ConfigurationError(f"kafka: set oauth_cb or {given[0]}, not both")
        config = str(settings.get(f"{OIDC}config", ""))
        return TokenCallback(shaded(_OAUTH), function, config)
    if str(settings.get(f"{OIDC}method", "")).lower() != "oidc":
        raise ConfigurationError(
            f"kafka: sasl.mechanism=OAUTHBEARER needs {OIDC}method=oidc, with {OIDC}client.id, "
            ".client.secret and .token.endpoint.url, or a token function as oauth_cb"
        )
    missing = [f"'{OIDC}{name}'" for name in _NEEDED if not settings.get(OIDC + name)]
    if missing:
        raise ConfigurationError(f"kafka needs {', '.join(missing)} for OAUTHBEARER")
    if settings.get(f"{OIDC}grant.type", _GRANT) != _GRANT:
        raise ConfigurationError(f"kafka['{OIDC}grant.type'] must be {_GRANT!r}")
    endpoint = str(settings[f"{OIDC}token.endpoint.url"])
    _check_endpoint(endpoint)
    scope = settings.get(f"{OIDC}scope")
    authorities = pem(settings, "https.ca")
    if authorities is not None:
        trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), authorities, "https.ca")
    return Grant(
        shaded(_OAUTH),
        ClientCredentials(
            endpoint,
            str(settings[f"{OIDC}client.id"]),
            str(settings[f"{OIDC}client.secret"]),
            None if scope is None else str(scope),
            authorities,
            _extensions(str(settings.get(f"{OIDC}extensions", ""))),
        ),
    )


def _check_endpoint(endpoint: str) -> None:
    setting = f"kafka['{OIDC}token.endpoint.url']"
    address, user_info = without_user_info(endpoint, setting)
    if user_info:
        raise ConfigurationError(
            f"{setting} contains a user name; set {OIDC}client.id and {OIDC}client.secret"
        )
    url = urllib.parse.urlsplit(address)
    if url.scheme == "http" and not is_loopback(url.hostname or ""):
        raise ConfigurationError(
            f"{setting} must be an https URL, since the client secret is sent there (http is "
            "allowed only for a loopback address, such as http://localhost:8080/token)"
        )


def _extensions(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if not all(name and equals for name, equals, _ in pairs):
        raise ConfigurationError(f"kafka['{OIDC}extensions'] must be key=value,key=value")
    return tuple((name.strip(), value) for name, _, value in pairs)
