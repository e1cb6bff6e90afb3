"""A broker with every kind of secured listener, and the credentials for each."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

from spark_eos.testing import EmbeddedKafka
from spark_eos.testing.broker_security import BrokerSecurity, Certificate, SecuredListener
from support.certificates import issued, pem
from support.tokens import AUDIENCE, ISSUER, TokenAuthority

USER = "alice"
# Characters that need escaping in a JAAS line, a properties file, SCRAM or a shell.
PASSWORD = "a \\ b\"c'd;e=f,g%h#i${j}\tk\N{LATIN SMALL LETTER E WITH ACUTE}l"
# Users whose secrets a test can search for where they must not appear.
MARKED_USER = "carol"
MARK = "MARKED"
MARKED_PASSWORD = f"{MARK}password7391"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
HOSTS = ("localhost", "127.0.0.1")
# Long enough for a busy machine to log in again in the last tenth of this time.
SHORT_LOGIN_MS = 3_000


@dataclass(frozen=True)
class Secured:
    """A running broker with secured listeners."""

    broker: EmbeddedKafka
    authority: trustme.CA  # signed the broker's and its clients' certificates
    authority_file: Path  # the authority's certificate, in a file
    client: Certificate  # a client's certificate
    tokens: TokenAuthority  # signs tokens for the broker

    def tls(self, listener: str = "SSL") -> dict[str, Any]:
        """Settings of a client that trusts the authority."""
        return {
            "bootstrap.servers": self.broker.servers_of(listener),
            "security.protocol": "SASL_SSL" if listener == "SASL_SSL" else "SSL",
            "ssl.ca.location": str(self.authority_file),
        }

    def sasl(self, mechanism: str, *, password: str = PASSWORD, tls: bool = True) -> dict[str, Any]:
        """Settings of a client with a user's name and password."""
        listener = "SASL_SSL" if tls else "SASL_PLAINTEXT"
        return {
            "bootstrap.servers": self.broker.servers_of(listener),
            "security.protocol": listener,
            "sasl.mechanism": mechanism,
            "sasl.username": USER,
            "sasl.password": password,
            **({"ssl.ca.location": str(self.authority_file)} if tls else {}),
        }


@contextmanager
def secured_kafka(directory: Path) -> Iterator[Secured]:
    authority = trustme.CA(organization_name="Tests")
    authority_file = directory / "authority.pem"
    authority_file.write_text(pem(authority), encoding="ascii")
    tokens = TokenAuthority()
    good = issued(authority, *HOSTS)
    security = BrokerSecurity(
        listeners={
            "SSL": SecuredListener("SSL", certificate=good),
            "MUTUAL": SecuredListener("SSL", certificate=good, client_auth="required"),
            "OTHER_HOST": SecuredListener("SSL", certificate=issued(authority, "kafka.test")),
            "EXPIRED": SecuredListener("SSL", certificate=issued(authority, *HOSTS, expired=True)),
            "SASL_SSL": SecuredListener("SASL_SSL", MECHANISMS, good),
            "SASL_PLAINTEXT": SecuredListener("SASL_PLAINTEXT", MECHANISMS),
            "SHORT": SecuredListener("SASL_PLAINTEXT", ("OAUTHBEARER", "PLAIN")),
            "SCRAM_ONLY": SecuredListener("SASL_PLAINTEXT", ("SCRAM-SHA-256",)),
        },
        users={USER: PASSWORD, MARKED_USER: MARKED_PASSWORD},
        trusted=pem(authority),
        jwks_url=tokens.write_jwks(directory / "jwks.json"),
        issuer=ISSUER,
        audience=AUDIENCE,
    )
    client = issued(authority, "client.test", common_name="client")
    # The latest time after which a connection must log in again (KIP-368).
    sessions = {
        f"listener.name.short.{mechanism}.connections.max.reauth.ms": str(SHORT_LOGIN_MS)
        for mechanism in ("oauthbearer", "plain")
    }
    with EmbeddedKafka(security=security, properties=sessions) as broker:
        yield Secured(broker, authority, authority_file, client, tokens)
