"""TLS settings: read once, as PEM, for librdkafka, Python and Java."""

import re
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spark_eos.errors import ConfigurationError

# PEM labels by the stem of the settings: ``.location`` names a file, ``.pem`` is the text itself.
_PEM_LABELS: Final = {
    "ssl.ca": "CERTIFICATE",
    "ssl.certificate": "CERTIFICATE",
    "ssl.key": "PRIVATE KEY",
}
NAMES: Final = frozenset(
    {f"{stem}.{how}" for stem in _PEM_LABELS for how in ("location", "pem")}
    | {
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
_BLOCK: Final = re.compile(r"-----BEGIN [^\n]*?-----.*?-----END [^\n]*?-----", re.DOTALL)
# Spark redacts options whose name or value contains a word like this one (spark.redaction.regex),
# but does not recognize private keys. Text before a PEM is ignored (RFC 7468, section 2).
_REDACTED_BY_SPARK: Final = "secret\n"
_TO_PKCS8: Final = "openssl pkcs8 -topk8 -nocrypt -in KEY -out NEW converts it"
# Object identifier of PBES2 (RFC 8018), which Kafka's Java client can't decrypt on Java 17.
_PBES2: Final = bytes.fromhex("06092a864886f70d01050d")


@dataclass(frozen=True)
class Tls:
    """Trusted authorities, and the client's certificate and key (PKCS#8), each as PEM or None."""

    authorities: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def for_librdkafka(self) -> dict[str, Any]:
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
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if self.authorities is None:
            context.load_default_certs()
        else:
            trust(context, self.authorities, "ssl.ca")
        if self.certificate is not None and self.key is not None:
            self._load_own(context, self.certificate, self.key)
        return context

    def _load_own(self, context: ssl.SSLContext, certificate: str, key: str) -> None:
        # Python loads a certificate and key only from a file. Only the user can read this
        # temporary file, and it is deleted right afterwards.
        with tempfile.NamedTemporaryFile("w", prefix="spark-eos-", suffix=".pem") as file:
            file.write(f"{certificate}\n{key}")
            file.flush()
            try:
                # Without this function, OpenSSL would ask for a password on the terminal.
                context.load_cert_chain(file.name, password=lambda: self.key_password or "")
            except (ssl.SSLError, ValueError) as error:
                if "ENCRYPTED" in key:
                    raise ConfigurationError(
                        "kafka: the key can't be decrypted with ssl.key.password"
                    ) from None
                raise _unreadable("ssl.certificate.location, ssl.key.location", error) from None

    def for_java(self) -> dict[str, str]:
        """Return settings for Kafka's Java clients (KIP-651)."""
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


def trust(context: ssl.SSLContext, authorities: str, stem: str) -> None:
    """Trust authorities; raise an error that names the setting if OpenSSL can't read them."""
    try:
        context.load_verify_locations(cadata=authorities)
    except (ssl.SSLError, ValueError) as error:
        raise _unreadable(f"{stem}.location or {stem}.pem", error) from None


def java_trust(authorities: str) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}


def _unreadable(what: str, error: Exception) -> ConfigurationError:
    reason = getattr(error, "reason", None) or "OpenSSL can't read it"
    return ConfigurationError(f"kafka: {what} can't be used: {reason}")


def tls(settings: Mapping[str, Any]) -> Tls:
    """Read the TLS settings, and the files on the driver's disk that they name."""
    verification = "enable.ssl.certificate.verification"
    verify = str(settings.get(verification, "true")).lower()
    if verify not in {"true", "false"}:
        raise ConfigurationError(f"kafka[{verification!r}] must be true or false")
    if verify == "false":
        raise ConfigurationError(
            f"kafka[{verification!r}] = false can't be used: Spark's Kafka source always verifies; "
            "set ssl.ca.location to the authority that signed the brokers' certificates"
        )
    algorithm = str(settings.get("ssl.endpoint.identification.algorithm", "https")).lower()
    if algorithm not in {"https", "none"}:
        # With an empty value, Java doesn't check host names; librdkafka refuses empty values.
        raise ConfigurationError(
            "kafka['ssl.endpoint.identification.algorithm'] must be 'https', which checks the "
            f"brokers' host names, or 'none', which does not, not {algorithm!r}"
        )
    certificate, key = pem(settings, "ssl.certificate"), pem(settings, "ssl.key")
    if (certificate is None) != (key is None):
        raise ConfigurationError(
            "kafka: a client certificate needs both ssl.certificate.location and "
            "ssl.key.location, or both ssl.certificate.pem and ssl.key.pem"
        )
    if key is not None:
        _check_key(key, encrypted="ssl.key.password" in settings)
    password = settings.get("ssl.key.password")
    if key is None or "ENCRYPTED PRIVATE KEY" not in key:
        password = None  # Java would try to decrypt the key
    return Tls(
        authorities=pem(settings, "ssl.ca"),
        certificate=certificate,
        key=key,
        key_password=None if password is None else str(password),
        check_hostname=algorithm == "https",
    )


def pem(settings: Mapping[str, Any], stem: str) -> str | None:
    """Read PEM text from a setting, or from the file that a setting names."""
    location, text = settings.get(f"{stem}.location"), settings.get(f"{stem}.pem")
    if location is not None and text is not None:
        raise ConfigurationError(f"kafka: set {stem}.location or {stem}.pem, not both")
    if location == "probe":  # librdkafka's name for the system's own certificates
        return None
    name = f"{stem}.pem"
    if location is not None:
        name = f"{stem}.location"
        if "-----BEGIN " in str(location):
            # The message doesn't quote the text, which may be a private key.
            raise ConfigurationError(
                f"kafka[{name!r}] is a PEM text, not the name of a file: set {stem}.pem instead"
            )
        try:
            text = Path(str(location)).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"kafka[{name!r}] = {str(location)!r} must be a PEM file that the driver can "
                f"read: {getattr(error, 'strerror', None) or 'it is not a text file'}"
            ) from None
    if text is None:
        return None
    label = _PEM_LABELS.get(stem, "CERTIFICATE")
    if "-----BEGIN " not in str(text) or f"{label}-----" not in str(text):
        raise ConfigurationError(
            f"kafka[{name!r}] is not a PEM text: '-----BEGIN {label}-----' is missing"
        )
    # Python's ssl module refuses comments that are not ASCII, and byte order marks.
    blocks = _BLOCK.findall(str(text))
    if not blocks:
        raise ConfigurationError(f"kafka[{name!r}] is not a whole PEM text: '-----END' is missing")
    return "\n".join(blocks) + "\n"


def _check_key(key: str, *, encrypted: bool) -> None:
    """Check that Spark's Kafka source can also read the private key."""
    if "-----BEGIN ENCRYPTED PRIVATE KEY-----" in key:
        if not encrypted:
            raise ConfigurationError("kafka: the key is encrypted; set ssl.key.password")
        try:
            # Python's ssl module decodes only certificates, so label the key as one.
            own = key[key.index("-----BEGIN ") :].strip()
            labeled = own.replace("ENCRYPTED PRIVATE KEY", "CERTIFICATE")
            der = ssl.PEM_cert_to_DER_cert(labeled)
        except ValueError:
            raise ConfigurationError("kafka: ssl.key is not the PEM of one key") from None
        if _PBES2 in der:
            raise ConfigurationError(
                "kafka: ssl.key is encrypted with PBES2, which Spark's Kafka source can't decrypt; "
                "keep the key in a secret store and pass it unencrypted as ssl.key.pem, or "
                "encrypt it with openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES -in KEY -out NEW"
            )
    elif "-----BEGIN PRIVATE KEY-----" not in key:
        raise ConfigurationError(
            f"kafka: ssl.key must be in PKCS#8, the only format that Java reads; {_TO_PKCS8}"
        )
