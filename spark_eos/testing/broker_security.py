"""Secured listeners of the embedded broker, beside its plain ones."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from spark_eos.client.jaas import JaasLine
from spark_eos.testing.broker_admin import TIMEOUT

# What comes over the plain listeners: the tests' own administration.
_ADMINISTRATION: Final = "User:ANONYMOUS"
_SCRAM: Final = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
_LOGIN: Final = "org.apache.kafka.common.security"
_SCRAM_ITERATIONS: Final = 4096  # the least that Kafka allows


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key.

    Attributes:
        chain: PEM, its own certificate first.
        key: PEM of the private key, in PKCS#8 and not encrypted.
    """

    chain: str
    key: str = field(repr=False)


@dataclass(frozen=True)
class SecuredListener:
    """One listener.

    Attributes:
        protocol: ``SSL``, ``SASL_SSL`` or ``SASL_PLAINTEXT``.
        mechanisms: Of SASL: ``PLAIN``, ``SCRAM-SHA-256``, ``SCRAM-SHA-512``, ``OAUTHBEARER``.
        certificate: What the broker shows, if the protocol has TLS.
        client_auth: Whether clients show a certificate: ``none``, ``requested`` or ``required``.
    """

    protocol: str
    mechanisms: tuple[str, ...] = ()
    certificate: Certificate | None = None
    client_auth: str = "none"


@dataclass(frozen=True)
class BrokerSecurity:
    """Who may connect to a broker, how, and what is allowed then.

    Attributes:
        listeners: By name, in capitals; none may be called CLIENT, INTERNAL or CONTROLLER.
        users: Passwords by name, for PLAIN and SCRAM.
        trusted: PEM of the authorities of clients' certificates.
        jwks_url: Where OAUTHBEARER finds the keys that sign tokens; ``file:`` is possible.
        issuer: What a token's ``iss`` must be; None for any.
        audience: What a token's ``aud`` must be; None for any.
        super_users: Principals such as ``User:admin`` that may do everything, beside the plain
            listeners' (``User:ANONYMOUS``). None: there is no authorizer; else
            StandardAuthorizer allows others only what ACLs say.
    """

    listeners: Mapping[str, SecuredListener]
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    trusted: str | None = None
    jwks_url: str | None = None
    issuer: str | None = None
    audience: str | None = None
    super_users: Collection[str] | None = None

    def properties(self) -> dict[str, str]:
        """The broker's settings, but for the addresses of its listeners."""
        found: dict[str, str] = {}
        for name, listener in self.listeners.items():
            settings = {**self._tls(listener), **self._sasl(listener)}
            prefix = f"listener.name.{name.lower()}."
            found |= {prefix + key: value for key, value in settings.items()}
        if self.jwks_url is not None:
            found["sasl.oauthbearer.jwks.endpoint.url"] = self.jwks_url
        if self.issuer is not None:
            found["sasl.oauthbearer.expected.issuer"] = self.issuer
        if self.audience is not None:
            found["sasl.oauthbearer.expected.audience"] = self.audience
        if self.super_users is not None:
            found |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "allow.everyone.if.no.acl.found": "false",
                "super.users": ";".join([_ADMINISTRATION, *self.super_users]),
            }
        return found

    @property
    def jvm_options(self) -> list[str]:
        """Options for the broker's JVM: Kafka asks only URLs that it is allowed to (KIP-1139)."""
        if self.jwks_url is None:
            return []
        return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.jwks_url}"]

    def _tls(self, listener: SecuredListener) -> dict[str, str]:
        if listener.certificate is None:
            return {}
        trust = {} if self.trusted is None else {"ssl.truststore.certificates": self.trusted}
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": listener.certificate.chain,
            "ssl.keystore.key": listener.certificate.key,
            "ssl.truststore.type": "PEM",
            "ssl.client.auth": listener.client_auth,
            **trust,
        }

    def _sasl(self, listener: SecuredListener) -> dict[str, str]:
        if not listener.mechanisms:
            return {}
        found = {"sasl.enabled.mechanisms": ",".join(listener.mechanisms)}
        for mechanism in listener.mechanisms:
            prefix = mechanism.lower()
            found[f"{prefix}.sasl.jaas.config"] = self._jaas(mechanism).render()
            if mechanism == "OAUTHBEARER":
                handler = f"{_LOGIN}.oauthbearer.OAuthBearerValidatorCallbackHandler"
                found[f"{prefix}.sasl.server.callback.handler.class"] = handler
        return found

    def _jaas(self, mechanism: str) -> JaasLine:
        if mechanism == "PLAIN":
            users = {f"user_{name}": password for name, password in self.users.items()}
            return JaasLine(f"{_LOGIN}.plain.PlainLoginModule", users)
        if mechanism in _SCRAM:
            return JaasLine(f"{_LOGIN}.scram.ScramLoginModule", {})
        return JaasLine(f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule", {})

    def create_credentials(self, admin: AdminClient) -> None:
        """Gives each user its SCRAM credentials, if a listener asks for them."""
        wanted = {
            name for one in self.listeners.values() for name in one.mechanisms
        } & _SCRAM.keys()
        # Kafka alters a user once in a request.
        for mechanism in sorted(wanted):
            how = ScramCredentialInfo(_SCRAM[mechanism], _SCRAM_ITERATIONS)
            credentials: list[UserScramCredentialAlteration] = [
                UserScramCredentialUpsertion(user, how, password.encode())
                for user, password in self.users.items()
            ]
            for future in admin.alter_user_scram_credentials(credentials).values():
                future.result(TIMEOUT)
