"""Secured listeners of the embedded broker, besides its plaintext ones."""

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

from spark_eos._client.jaas import JaasLine
from spark_eos.testing.broker_admin import TIMEOUT

# The principal on plaintext listeners, which tests use for administration.
_ADMINISTRATION: Final = "User:ANONYMOUS"
_SCRAM: Final = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
_LOGIN: Final = "org.apache.kafka.common.security"
_SCRAM_ITERATIONS: Final = 4096  # Kafka's minimum


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key.

    Attributes:
        chain: The certificate chain in PEM, the broker's own certificate first.
        key: The private key in PEM: PKCS#8, not encrypted.

    Examples:
        >>> certificate = Certificate(chain="-----BEGIN CERTIFICATE-----...", key="secret")
        >>> certificate  # does not show the key
        Certificate(chain='-----BEGIN CERTIFICATE-----...')
    """

    chain: str
    key: str = field(repr=False)


@dataclass(frozen=True)
class SecuredListener:
    """One secured listener.

    Attributes:
        protocol: ``SSL``, ``SASL_SSL`` or ``SASL_PLAINTEXT``.
        mechanisms: SASL mechanisms: ``PLAIN``, ``SCRAM-SHA-256``, ``SCRAM-SHA-512`` or
            ``OAUTHBEARER``.
        certificate: The broker's certificate, for protocols with TLS.
        client_auth: Whether clients present a certificate: ``none``, ``requested`` or
            ``required``.

    Examples:
        >>> SecuredListener("SASL_PLAINTEXT", mechanisms=("SCRAM-SHA-512",)).client_auth
        'none'
    """

    protocol: str
    mechanisms: tuple[str, ...] = ()
    certificate: Certificate | None = None
    client_auth: str = "none"


@dataclass(frozen=True)
class BrokerSecurity:
    """Authentication and authorization of a broker.

    Attributes:
        listeners: Listeners by name, in capitals; CLIENT, INTERNAL and CONTROLLER are reserved.
        users: Passwords by user name, for PLAIN and SCRAM.
        trusted: Certificates, in PEM, of the authorities that sign clients' certificates.
        jwks_url: URL of the keys that sign OAUTHBEARER tokens; ``file:`` is possible.
        issuer: Required ``iss`` of tokens; None for any.
        audience: Required ``aud`` of tokens; None for any.
        super_users: Principals such as ``User:admin`` that may do everything, in addition to the
            principal of plaintext listeners (``User:ANONYMOUS``). All other principals may do only
            what ACLs allow (StandardAuthorizer). None means that there is no authorizer.

    Examples:
        >>> security = BrokerSecurity(
        ...     listeners={"SASL": SecuredListener("SASL_PLAINTEXT", mechanisms=("PLAIN",))},
        ...     users={"alice": "secret"},
        ...     super_users=["User:admin"],
        ... )
        >>> security.properties()["super.users"]
        'User:ANONYMOUS;User:admin'

        Start a broker with these settings:

            with EmbeddedKafka(security=security) as kafka:
                print(kafka.servers_of("SASL"))
    """

    listeners: Mapping[str, SecuredListener]
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    trusted: str | None = None
    jwks_url: str | None = None
    issuer: str | None = None
    audience: str | None = None
    super_users: Collection[str] | None = None

    def properties(self) -> dict[str, str]:
        """Return the broker's settings, without the addresses of its listeners."""
        properties: dict[str, str] = {}
        for name, listener in self.listeners.items():
            settings = {**self._tls(listener), **self._sasl(listener)}
            prefix = f"listener.name.{name.lower()}."
            properties |= {prefix + key: value for key, value in settings.items()}
        if self.jwks_url is not None:
            properties["sasl.oauthbearer.jwks.endpoint.url"] = self.jwks_url
        if self.issuer is not None:
            properties["sasl.oauthbearer.expected.issuer"] = self.issuer
        if self.audience is not None:
            properties["sasl.oauthbearer.expected.audience"] = self.audience
        if self.super_users is not None:
            properties |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "allow.everyone.if.no.acl.found": "false",
                "super.users": ";".join([_ADMINISTRATION, *self.super_users]),
            }
        return properties

    @property
    def jvm_options(self) -> list[str]:
        """Options for the broker's JVM: Kafka fetches only from allowed URLs (KIP-1139)."""
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
        properties = {"sasl.enabled.mechanisms": ",".join(listener.mechanisms)}
        for mechanism in listener.mechanisms:
            prefix = mechanism.lower()
            properties[f"{prefix}.sasl.jaas.config"] = self._jaas(mechanism).render()
            if mechanism == "OAUTHBEARER":
                handler = f"{_LOGIN}.oauthbearer.OAuthBearerValidatorCallbackHandler"
                properties[f"{prefix}.sasl.server.callback.handler.class"] = handler
        return properties

    def _jaas(self, mechanism: str) -> JaasLine:
        if mechanism == "PLAIN":
            users = {f"user_{name}": password for name, password in self.users.items()}
            return JaasLine(f"{_LOGIN}.plain.PlainLoginModule", users)
        if mechanism in _SCRAM:
            return JaasLine(f"{_LOGIN}.scram.ScramLoginModule", {})
        return JaasLine(f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule", {})

    def create_credentials(self, admin: AdminClient) -> None:
        """Create each user's SCRAM credentials, if a listener uses SCRAM."""
        wanted = {
            name for listener in self.listeners.values() for name in listener.mechanisms
        } & _SCRAM.keys()
        # One request per mechanism: Kafka alters a user only once per request.
        for mechanism in sorted(wanted):
            how = ScramCredentialInfo(_SCRAM[mechanism], _SCRAM_ITERATIONS)
            credentials: list[UserScramCredentialAlteration] = [
                UserScramCredentialUpsertion(user, how, password.encode())
                for user, password in self.users.items()
            ]
            for future in admin.alter_user_scram_credentials(credentials).values():
                future.result(TIMEOUT)
