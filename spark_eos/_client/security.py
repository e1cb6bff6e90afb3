"""Security settings, named as in librdkafka, for librdkafka, kafka-python and Java."""

# Settings are named as in librdkafka's CONFIGURATION.md. Spark's style also works, with the prefix
# `kafka.` and a JAAS line. If one of the three clients lacks a setting, an error names the setting.

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_eos._client import sasl_settings
from spark_eos._client import tls as tls_settings
from spark_eos._client.sasl import Sasl
from spark_eos._client.sasl_settings import sasl
from spark_eos._client.tls import Tls, tls
from spark_eos.errors import ConfigurationError

_PROTOCOL: Final = "security.protocol"
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PREFIXES: Final = ("sasl.", "ssl.", "ssl_", "https.", "enable.ssl.", "enable.sasl.", "oauth")
_AS_PEM: Final = "set PEM files as ssl.ca.location, ssl.certificate.location and ssl.key.location"
_NOT_IN_ALL: Final = "not all Kafka clients of a query support it"
# Advice for refused settings, by the prefix of the name; the first match counts.
_INSTEAD: Final = {
    "ssl.truststore.": f"{_AS_PEM} instead",
    "ssl.keystore.": f"{_AS_PEM} instead",
    "ssl.crl.": _NOT_IN_ALL,
    "ssl.": f"{_NOT_IN_ALL}; change OpenSSL's and Java's own configuration instead",
    "sasl.kerberos.": "Kerberos is not supported; use SCRAM, OAUTHBEARER or a client certificate",
    "sasl.login.": "set it in options= of sink.read, in addition to oauth_cb",
    "sasl.client.callback.": "for Amazon MSK set sasl.mechanism=AWS_MSK_IAM",
    "sasl.oauthbearer.": "use the client-credentials grant, or a token function as oauth_cb",
    "enable.sasl.oauthbearer.unsecure.jwt": "unsigned tokens are not secure; use oauth_cb",
}


def is_security_setting(name: str) -> bool:
    return name == _PROTOCOL or name.startswith(_PREFIXES)


@dataclass(frozen=True)
class Security:
    protocol: str
    tls: Tls | None
    sasl: Sasl | None

    def __str__(self) -> str:
        """Return the protocol, mechanism and user, without secrets."""
        parts = [self.protocol]
        if self.sasl is not None:
            parts.append(self.sasl.mechanism)
            if self.sasl.user:
                parts.append(f"as {self.sasl.user}")
        return " ".join(parts)

    @property
    def principal(self) -> str | None:
        """The client's principal if brokers don't map names; None if only the brokers know it."""
        if self.sasl is not None:
            return f"User:{self.sasl.user}" if self.sasl.user else None
        shown = self.tls is not None and self.tls.certificate is not None
        return None if shown else "User:ANONYMOUS"

    def for_librdkafka(self) -> dict[str, Any]:
        return {
            _PROTOCOL: self.protocol,
            **({} if self.tls is None else self.tls.for_librdkafka()),
            **({} if self.sasl is None else self.sasl.for_librdkafka()),
        }

    def for_kafka_python(self) -> dict[str, Any]:
        """Return settings for kafka-python, built on each call because they can't be pickled."""
        return {
            "security_protocol": self.protocol,
            **({} if self.tls is None else {"ssl_context": self.tls.context()}),
            **({} if self.sasl is None else self.sasl.for_kafka_python()),
        }

    def for_java(self) -> dict[str, str]:
        if self.protocol == "PLAINTEXT":
            return {}
        return {
            _PROTOCOL: self.protocol,
            **({} if self.tls is None else self.tls.for_java()),
            **({} if self.sasl is None else self.sasl.for_java()),
        }


def security(settings: Mapping[str, Any]) -> Security:
    given = [name for name in settings if is_security_setting(name)]
    known = {_PROTOCOL, *tls_settings.NAMES, *sasl_settings.NAMES}
    for name in given:
        if name not in known:
            reason = next((text for stem, text in _INSTEAD.items() if name.startswith(stem)), None)
            raise ConfigurationError(
                f"kafka[{name!r}] can't be set: {reason or 'there is no such setting'}"
            )
    protocol = str(settings.get(_PROTOCOL, "PLAINTEXT")).upper()
    if protocol not in _PROTOCOLS:
        raise ConfigurationError(
            f"kafka['security.protocol'] must be one of {', '.join(_PROTOCOLS)}, not {protocol!r}"
        )
    has_tls, has_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    for name in given:
        # A setting without effect would give a false sense of security.
        if (name in tls_settings.NAMES and not has_tls) or (
            name in sasl_settings.NAMES and not has_sasl
        ):
            raise ConfigurationError(
                f"kafka[{name!r}] is set, but security.protocol={protocol} does not use it; set "
                f"security.protocol to {'SASL_SSL' if name in sasl_settings.NAMES else 'SSL'}"
            )
    return Security(
        protocol,
        tls(settings) if has_tls else None,
        sasl(settings) if has_sasl else None,
    )
