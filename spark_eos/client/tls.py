"""TLS settings: read once, as PEM, for OpenSSL, Python and Java."""

import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spark_eos.errors import ConfigurationError

# Each by its file or its text; what they are for messages.
_PEMS: Final = {
    "ssl.ca": "CERTIFICATE",
    "ssl.certificate": "CERTIFICATE",
    "ssl.key": "PRIVATE KEY",
}
NAMES: Final = frozenset(
    {f"{stem}.{how}" for stem in _PEMS for how in ("location", "pem")}
    | {
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
_TO_PKCS8: Final = "openssl pkcs8 -topk8 -nocrypt -in KEY -out NEW converts it"
# Spark hides options whose name or value has such a word (spark.redaction.regex), and knows nothing
# of private keys. Text before a PEM is no part of it (RFC 7468, section 2).
_REDACTED_BY_SPARK: Final = "secret\n"
# The object identifier of PBES2 (RFC 8018), which Kafka's Java client can't decrypt on Java 17.
_PBES2: Final = bytes.fromhex("06092a864886f70d01050d")


@dataclass(frozen=True)
class Tls:
    """What a client trusts, and shows. Texts are PEM.

    Attributes:
        authorities: certificates of authorities; None for the system's.
        certificate: the client's chain, its own first; None for none.
        key: its private key, in PKCS#8.
        key_password: what the key is encrypted with; None if it is not.
        check_hostname: whether a broker's certificate must be for the name it is called by.
    """

    authorities: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def for_librdkafka(self) -> dict[str, Any]:
        """Settings of librdkafka."""
        texts = {
            "ssl.ca.pem": self.authorities,
            "ssl.certificate.pem": self.certificate,
            "ssl.key.pem": self.key,
            "ssl.key.password": self.key_password,
        }
        return {
            **{name: text for name, text in texts.items() if text is not None},
            "ssl.endpoint.identification.algorithm": "https" if self.check_hostname else "none",
        }

    def context(self) -> ssl.SSLContext:
        """For Python's sockets.

        Raises:
            ConfigurationError: OpenSSL can't read or use a certificate or key.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if self.authorities is None:
            context.load_default_certs()
        else:
            try:
                context.load_verify_locations(cadata=self.authorities)
            except (ssl.SSLError, ValueError) as error:
                raise _unreadable("ssl.ca.location or ssl.ca.pem", error) from None
        if self.certificate is not None and self.key is not None:
            self._load_own(context, self.certificate, self.key)
        return context

    def _load_own(self, context: ssl.SSLContext, certificate: str, key: str) -> None:
        # Python takes these from a file only; nobody else can read this one, which is soon gone.
        with tempfile.NamedTemporaryFile("w", prefix="spark-eos-", suffix=".pem") as file:
            file.write(f"{certificate}\n{key}")
            file.flush()
            try:
                # Without a password OpenSSL would ask for one on the terminal.
                context.load_cert_chain(file.name, password=lambda: self.key_password or "")
            except (ssl.SSLError, ValueError) as error:
                if "ENCRYPTED" in key:
                    raise ConfigurationError(
                        "kafka: the key can't be decrypted with ssl.key.password"
                    ) from None
                raise _unreadable("ssl.certificate.location, ssl.key.location", error) from None

    def for_java(self) -> dict[str, str]:
        """Settings of Kafka's Java clients (KIP-651)."""
        options = {"ssl.endpoint.identification.algorithm": "https" if self.check_hostname else ""}
        if self.authorities is not None:
            options |= java_trust(self.authorities)
        if self.certificate is not None and self.key is not None:
            options["ssl.keystore.type"] = "PEM"
            options["ssl.keystore.certificate.chain"] = self.certificate
            options["ssl.keystore.key"] = _REDACTED_BY_SPARK + self.key
        if self.key_password is not None:
            options["ssl.key.password"] = self.key_password
        return options


def java_trust(authorities: str) -> dict[str, str]:
    """Settings of Kafka's Java clients that make them trust authorities, given as PEM."""
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}


def _unreadable(what: str, error: Exception) -> ConfigurationError:
    reason = getattr(error, "reason", None) or "OpenSSL can't read it"
    return ConfigurationError(f"kafka: {what} can't be used: {reason}")


def tls(settings: Mapping[str, Any]) -> Tls:
    """TLS as the settings say; files are read now, on the driver.

    Raises:
        ConfigurationError: a setting can't be used.
    """
    if not parse_bool(settings, "enable.ssl.certificate.verification", default=True):
        raise ConfigurationError(
            "kafka['enable.ssl.certificate.verification'] = false: Spark's Kafka source always "
            "verifies; set ssl.ca.location to the authority that signed the brokers' certificates"
        )
    algorithm = str(settings.get("ssl.endpoint.identification.algorithm", "https")).lower()
    if algorithm not in {"https", "none", ""}:
        raise ConfigurationError(
            "kafka['ssl.endpoint.identification.algorithm'] must be 'https' or 'none'"
        )
    certificate, key = pem(settings, "ssl.certificate"), pem(settings, "ssl.key")
    if (certificate is None) != (key is None):
        raise ConfigurationError(
            "kafka: a client's certificate needs both ssl.certificate.location and "
            "ssl.key.location, or both ssl.certificate.pem and ssl.key.pem"
        )
    if key is not None:
        _check_key(key, encrypted="ssl.key.password" in settings)
    password = settings.get("ssl.key.password")
    return Tls(
        authorities=pem(settings, "ssl.ca"),
        certificate=certificate,
        key=key,
        key_password=None if password is None else str(password),
        check_hostname=algorithm == "https",
    )


def _check_key(key: str, *, encrypted: bool) -> None:
    if "-----BEGIN ENCRYPTED PRIVATE KEY-----" in key:
        if not encrypted:
            raise ConfigurationError("kafka: the key is encrypted; set ssl.key.password")
        try:
            der = ssl.PEM_cert_to_DER_cert(_as_certificate(key))
        except ValueError:
            raise ConfigurationError("kafka: ssl.key is not the PEM of one key") from None
        if _PBES2 in der:
            raise ConfigurationError(
                "kafka: ssl.key is encrypted by PBES2, which Spark's Kafka source can't decrypt; "
                "keep the key where secrets are kept and give it as ssl.key.pem, not encrypted, "
                "or encrypt it by openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES -in KEY -out NEW"
            )
    elif "-----BEGIN PRIVATE KEY-----" not in key:
        raise ConfigurationError(
            f"kafka: ssl.key must be in PKCS#8, which is all that Java reads; {_TO_PKCS8}"
        )


def _as_certificate(key: str) -> str:
    # Python takes apart one kind of PEM only.
    return key[key.index("-----BEGIN ") :].strip().replace("ENCRYPTED PRIVATE KEY", "CERTIFICATE")


def pem(settings: Mapping[str, Any], stem: str) -> str | None:
    """A PEM text, given itself or by a file.

    Args:
        settings: the settings.
        stem: what its two names begin with, such as ``ssl.ca``.

    Raises:
        ConfigurationError: both are given, the file can't be read, or it is not such a text.
    """
    location, text = settings.get(f"{stem}.location"), settings.get(f"{stem}.pem")
    if location is not None and text is not None:
        raise ConfigurationError(f"kafka: give {stem}.location or {stem}.pem, not both")
    if location == "probe":  # librdkafka's word for the system's own
        return None
    name = f"{stem}.pem"
    if location is not None:
        name = f"{stem}.location"
        try:
            text = Path(str(location)).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"kafka[{name!r}] = {str(location)!r} must be a PEM file that the driver can "
                f"read: {getattr(error, 'strerror', None) or 'it is no text'}"
            ) from None
    if text is None:
        return None
    what = _PEMS.get(stem, "CERTIFICATE")
    if "-----BEGIN " not in str(text) or f"{what}-----" not in str(text):
        raise ConfigurationError(f"kafka[{name!r}] has no '-----BEGIN {what}-----': it is no PEM")
    return str(text)


def parse_bool(settings: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """A setting that is true or false.

    Raises:
        ConfigurationError: it is neither.
    """
    value = str(settings.get(name, default)).lower()
    if value not in {"true", "false"}:
        raise ConfigurationError(f"kafka[{name!r}] must be true or false")
    return value == "true"
