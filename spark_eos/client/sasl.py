"""SASL: who a client says it is, told to librdkafka, kafka-python and Java."""

import functools
import os
import urllib.parse
from dataclasses import dataclass, field
from typing import Any, Final

from spark_eos.client.jaas import JaasLine
from spark_eos.client.oauth import ClientCredentials, MskIam, TokenFunction, TokenProvider
from spark_eos.client.tls import java_trust
from spark_eos.errors import ConfigurationError

MSK_IAM: Final = "AWS_MSK_IAM"
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
_MSK_HANDLER: Final = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"


@dataclass(frozen=True)
class Sasl:
    """A SASL mechanism and its credentials.

    Attributes:
        mechanism: Kafka's name of the mechanism, or `MSK_IAM`.
        module: Class name of Java's login module.
        username: User name for PLAIN and SCRAM.
        password: Password for PLAIN and SCRAM.
        credentials: Client credentials for OAUTHBEARER.
        function: Function that returns tokens for OAUTHBEARER and MSK.
        config: Argument of the function.
        extensions: SASL extensions for OAUTHBEARER (KIP-342), as (name, value) pairs.

    Example:
        >>> sasl = Sasl("PLAIN", "PlainLoginModule", username="alice", password="secret")
        >>> sasl
        Sasl(mechanism='PLAIN', module='PlainLoginModule', username='alice', credentials=None)
        >>> sasl.for_java()["sasl.jaas.config"]
        'PlainLoginModule required username="alice" password="secret";'
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
        """Whether Spark's source needs a login handler: Java can't call a Python function."""
        return self.function is not None and self.mechanism != MSK_IAM

    def for_librdkafka(self) -> dict[str, Any]:
        """Settings for librdkafka."""
        if self.mechanism in BY_PASSWORD:
            return {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.username,
                "sasl.password": self.password,
            }
        settings: dict[str, Any] = {"sasl.mechanism": "OAUTHBEARER"}
        found = self.credentials
        if found is None:
            return {**settings, "oauth_cb": self.function, f"{OIDC}config": self.config}
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

    def for_wire(self) -> dict[str, Any]:
        """Settings for kafka-python.

        Raises:
            ConfigurationError: OAUTHBEARER has neither client credentials nor a function.
        """
        if self.mechanism in BY_PASSWORD:
            username = self.username
            if self.mechanism != "PLAIN":
                # kafka-python leaves the escaping of RFC 5802 (section 5.1) to its caller.
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
        """Settings for Kafka's Java clients."""
        if self.mechanism in BY_PASSWORD:
            line = JaasLine(self.module, {"username": self.username, "password": self.password})
            return {"sasl.mechanism": self.mechanism, "sasl.jaas.config": line.render()}
        if isinstance(self.function, MskIam):
            given = {
                name: getattr(self.function, here)
                for name, here in MSK_OPTIONS.items()
                if getattr(self.function, here) is not None
            }
            return {
                "sasl.mechanism": MSK_IAM,
                "sasl.jaas.config": JaasLine(self.module, given).render(),
                "sasl.client.callback.handler.class": _MSK_HANDLER,
            }
        # Spark's log omits everything after password= in a JAAS line; Kafka ignores this option.
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
            settings[f"{OIDC}token.endpoint.url"] = found.endpoint
            settings[_LOGIN_HANDLER] = shaded(_OAUTH_HANDLER)
        settings["sasl.jaas.config"] = JaasLine(self.module, options).render()
        return settings


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
