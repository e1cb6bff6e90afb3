"""SASL: who a client says it is, in the settings of librdkafka, kafka-python and Java."""

import functools
import os
import urllib.parse
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

from spark_eos._client.jaas import JaasLine
from spark_eos._client.oauth import ClientCredentials, MskIam, TokenFunction, TokenProvider
from spark_eos._client.tls import java_trust

MSK_IAM: Final = "AWS_MSK_IAM"
OAUTHBEARER: Final = "OAUTHBEARER"
BY_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
OIDC: Final = "sasl.oauthbearer."
MSK_OPTIONS: Final = {
    "awsProfileName": "profile",
    "awsRoleArn": "role",
    "awsRoleSessionName": "session",
}
"""Options of Amazon's login module, each with the attribute of `MskIam` that holds it."""

_LOGIN_HANDLER: Final = "sasl.login.callback.handler.class"
_OAUTH_HANDLER: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
)
# As librdkafka's HTTP client reads them.
_PROXIES: Final = ("http_proxy", "all_proxy", "ALL_PROXY")
# Spark's log omits everything after password= in a JAAS line; Kafka ignores this option.
_REDACTED: Final = {"password": ""}
_MSK_HANDLER: Final = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"


class Sasl(Protocol):
    """A SASL mechanism and its credentials, for each client; one class for each kind."""

    @property
    def mechanism(self) -> str:
        """Kafka's name of the mechanism, or `MSK_IAM`."""

    @property
    def user(self) -> str | None:
        """The user name; None if only the brokers know it."""

    @property
    def advice(self) -> str:
        """What to do if the brokers refuse the credentials."""

    @property
    def needs_java_handler(self) -> bool:
        """Whether Spark's source needs a login handler: Java can't call a Python function."""

    def for_librdkafka(self) -> dict[str, Any]:
        """Settings for librdkafka."""

    def for_kafka_python(self) -> dict[str, Any]:
        """Settings for kafka-python."""

    def for_java(self) -> dict[str, str]:
        """Settings for Kafka's Java clients."""


@dataclass(frozen=True)
class Password:
    """PLAIN or SCRAM; ``module`` is the class name of Java's login module.

    Example:
        >>> sasl = Password("PLAIN", "PlainLoginModule", "alice", "secret")
        >>> sasl
        Password(mechanism='PLAIN', module='PlainLoginModule', user='alice')
        >>> sasl.for_java()["sasl.jaas.config"]
        'PlainLoginModule required username="alice" password="secret";'
    """

    mechanism: str
    module: str
    user: str
    password: str = field(repr=False)
    advice: ClassVar[str] = "check sasl.username and sasl.password"
    needs_java_handler: ClassVar[bool] = False

    def for_librdkafka(self) -> dict[str, Any]:
        return {
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
        }

    def for_kafka_python(self) -> dict[str, Any]:
        """Settings for kafka-python, which leaves escaping (RFC 5802, 5.1) to its caller."""
        user = self.user
        if self.mechanism != "PLAIN":
            user = user.replace("=", "=3D").replace(",", "=2C")
        return {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": self.password,
        }

    def for_java(self) -> dict[str, str]:
        """Settings for Kafka's Java clients."""
        line = JaasLine(self.module, {"username": self.user, "password": self.password})
        return {"sasl.mechanism": self.mechanism, "sasl.jaas.config": line.render()}


@dataclass(frozen=True)
class Grant:
    """OAUTHBEARER by client credentials, with SASL extensions (KIP-342) as (name, value) pairs."""

    module: str
    credentials: ClientCredentials
    extensions: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    mechanism: ClassVar[str] = OAUTHBEARER
    user: ClassVar[None] = None
    advice: ClassVar[str] = "it does not accept the token of sasl.oauthbearer.token.endpoint.url"
    needs_java_handler: ClassVar[bool] = False

    def for_librdkafka(self) -> dict[str, Any]:
        """Settings for librdkafka, which asks for tokens itself unless a proxy would hear it."""
        found = self.credentials
        settings: dict[str, Any] = {"sasl.mechanism": OAUTHBEARER}
        if urllib.parse.urlsplit(found.endpoint).scheme == "http" and any(
            map(os.environ.get, _PROXIES)
        ):
            # librdkafka can't be told to take none, and a proxy would read the client secret.
            return {**settings, "oauth_cb": functools.partial(_token, found, self.extensions)}
        settings[f"{OIDC}method"] = "oidc"
        settings[f"{OIDC}client.id"] = found.client_id
        settings[f"{OIDC}client.secret"] = found.client_secret
        settings[f"{OIDC}token.endpoint.url"] = found.endpoint
        if found.scope is not None:
            settings[f"{OIDC}scope"] = found.scope
        if self.extensions:
            settings[f"{OIDC}extensions"] = ",".join("=".join(pair) for pair in self.extensions)
        if found.authorities is not None:
            settings["https.ca.pem"] = found.authorities
        return settings

    def for_kafka_python(self) -> dict[str, Any]:
        return _by_token(TokenProvider(self.credentials, "", dict(self.extensions)))

    def for_java(self) -> dict[str, str]:
        """Settings for Kafka's Java clients."""
        found = self.credentials
        options = {**_REDACTED, **{f"extension_{name}": text for name, text in self.extensions}}
        options["clientId"] = found.client_id
        options["clientSecret"] = found.client_secret
        if found.scope is not None:
            options["scope"] = found.scope
        if found.authorities is not None:
            options |= java_trust(found.authorities)
        return {
            "sasl.mechanism": OAUTHBEARER,
            f"{OIDC}token.endpoint.url": found.endpoint,
            _LOGIN_HANDLER: shaded(_OAUTH_HANDLER),
            "sasl.jaas.config": JaasLine(self.module, options).render(),
        }


@dataclass(frozen=True)
class TokenCallback:
    """OAUTHBEARER by the user's function, called with ``config``."""

    module: str
    function: TokenFunction = field(repr=False)
    config: str = field(default="", repr=False)
    mechanism: ClassVar[str] = OAUTHBEARER
    user: ClassVar[None] = None
    advice: ClassVar[str] = "it does not accept the token that oauth_cb returned"
    needs_java_handler: ClassVar[bool] = True

    def for_librdkafka(self) -> dict[str, Any]:
        return {
            "sasl.mechanism": OAUTHBEARER,
            "oauth_cb": self.function,
            f"{OIDC}config": self.config,
        }

    def for_kafka_python(self) -> dict[str, Any]:
        return _by_token(TokenProvider(self.function, self.config, {}))

    def for_java(self) -> dict[str, str]:
        """Settings for Kafka's Java clients, without the handler that the user has to set."""
        line = JaasLine(self.module, _REDACTED)
        return {"sasl.mechanism": OAUTHBEARER, "sasl.jaas.config": line.render()}


@dataclass(frozen=True)
class Msk:
    """Amazon MSK: to Java a mechanism of its own, to the others OAUTHBEARER."""

    module: str
    function: MskIam
    mechanism: ClassVar[str] = MSK_IAM
    user: ClassVar[None] = None
    advice: ClassVar[str] = (
        "check the AWS credentials on this machine and the policies of their identity"
    )
    needs_java_handler: ClassVar[bool] = False

    def for_librdkafka(self) -> dict[str, Any]:
        return {"sasl.mechanism": OAUTHBEARER, "oauth_cb": self.function, f"{OIDC}config": ""}

    def for_kafka_python(self) -> dict[str, Any]:
        return _by_token(TokenProvider(self.function, "", {}))

    def for_java(self) -> dict[str, str]:
        """Settings for Kafka's Java clients."""
        given = {
            name: text
            for name, here in MSK_OPTIONS.items()
            if (text := getattr(self.function, here)) is not None
        }
        return {
            "sasl.mechanism": MSK_IAM,
            "sasl.jaas.config": JaasLine(self.module, given).render(),
            "sasl.client.callback.handler.class": _MSK_HANDLER,
        }


def _by_token(provider: TokenProvider) -> dict[str, Any]:
    return {"sasl_mechanism": OAUTHBEARER, "sasl_oauth_token_provider": provider}


def _token(
    credentials: ClientCredentials, extensions: tuple[tuple[str, str], ...], config: str
) -> tuple[str, float, str, dict[str, str]]:
    """A token as librdkafka's ``oauth_cb`` returns it."""
    return (*credentials(config), "", dict(extensions))


def shaded(name: str) -> str:
    """The name of a class of Kafka's Java client in this runtime.

    Databricks renames the packages of the Kafka client that its Spark reads with.
    """
    return f"kafkashaded.{name}" if "DATABRICKS_RUNTIME_VERSION" in os.environ else name
