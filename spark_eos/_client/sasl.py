"""SASL credentials, as settings of librdkafka, kafka-python and Java."""

import functools
import os
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias

from spark_eos._client.jaas import JaasLine
from spark_eos._client.oauth import (
    ClientCredentials,
    MskIam,
    TokenFunction,
    TokenProvider,
    patiently,
)
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
# Spark's log omits everything after password= in a JAAS line; Kafka ignores this option.
_REDACTED: Final = {"password": ""}
_MSK_HANDLER: Final = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"


@dataclass(frozen=True)
class Password:
    """PLAIN or SCRAM; ``module`` is the class name of Java's login module."""

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
        """Return settings for kafka-python, which leaves escaping (RFC 5802, 5.1) to its caller."""
        user = self.user
        if self.mechanism != "PLAIN":
            user = user.replace("=", "=3D").replace(",", "=2C")
        return {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": self.password,
        }

    def for_java(self) -> dict[str, str]:
        line = JaasLine(self.module, {"username": self.user, "password": self.password})
        return {"sasl.mechanism": self.mechanism, "sasl.jaas.config": line.render()}


@dataclass(frozen=True)
class TokenCallback:
    """OAUTHBEARER with a token function that takes ``config``; for Java, users set a handler."""

    module: str
    function: TokenFunction = field(repr=False)
    config: str = field(default="", repr=False)
    mechanism: ClassVar[str] = OAUTHBEARER
    # Only the brokers know the user.
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
        provider = TokenProvider(self.function, self.config)
        return {"sasl_mechanism": OAUTHBEARER, "sasl_oauth_token_provider": provider}

    def for_java(self) -> dict[str, str]:
        line = JaasLine(self.module, _REDACTED)
        return {"sasl.mechanism": OAUTHBEARER, "sasl.jaas.config": line.render()}


@dataclass(frozen=True)
class Grant(TokenCallback):
    """OAUTHBEARER with client credentials, which Kafka's own Java handler supports."""

    function: ClientCredentials
    advice: ClassVar[str] = "it does not accept the token from sasl.oauthbearer.token.endpoint.url"
    needs_java_handler: ClassVar[bool] = False

    def for_librdkafka(self) -> dict[str, Any]:
        return {**super().for_librdkafka(), "oauth_cb": functools.partial(patiently, self.function)}

    def for_java(self) -> dict[str, str]:
        function = self.function
        options = {**_REDACTED, **{f"extension_{name}": text for name, text in function.extensions}}
        options["clientId"] = function.client_id
        options["clientSecret"] = function.client_secret
        if function.scope is not None:
            options["scope"] = function.scope
        if function.authorities is not None:
            options |= java_trust(function.authorities)
        return {
            "sasl.mechanism": OAUTHBEARER,
            f"{OIDC}token.endpoint.url": function.endpoint,
            _LOGIN_HANDLER: shaded(_OAUTH_HANDLER),
            "sasl.jaas.config": JaasLine(self.module, options).render(),
        }


@dataclass(frozen=True)
class Msk(TokenCallback):
    """Amazon MSK: a mechanism of its own in Java, and OAUTHBEARER in the other clients."""

    function: MskIam
    mechanism: ClassVar[str] = MSK_IAM
    advice: ClassVar[str] = (
        "check the AWS credentials on this machine and the policies of their identity"
    )
    needs_java_handler: ClassVar[bool] = False

    def for_java(self) -> dict[str, str]:
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


Sasl: TypeAlias = Password | TokenCallback


def shaded(name: str) -> str:
    """Return what a class of Kafka's Java client is called here: Databricks renames packages."""
    return f"kafkashaded.{name}" if "DATABRICKS_RUNTIME_VERSION" in os.environ else name
