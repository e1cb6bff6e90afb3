"""Certificates and keys as PEM: read from a setting or a file, and checked."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from spark_eos.errors import ConfigurationError

PEM_SETTINGS: Final = {
    "ssl.ca": "CERTIFICATE",
    "ssl.certificate": "CERTIFICATE",
    "ssl.key": "PRIVATE KEY",
}
"""PEM label by setting. Add ``.location`` for the name of a file, ``.pem`` for the text itself."""

_TO_PKCS8: Final = "openssl pkcs8 -topk8 -nocrypt -in KEY -out NEW converts it"
# Object identifier of PBES2 (RFC 8018), which Kafka's Java client can't decrypt on Java 17.
_PBES2: Final = bytes.fromhex("06092a864886f70d01050d")


def pem(settings: Mapping[str, Any], stem: str) -> str | None:
    """Reads a PEM text from a setting, or from the file that a setting names.

    Example:
        >>> pem({"ssl.ca.pem": "-----BEGIN CERTIFICATE-----"}, "ssl.ca")
        '-----BEGIN CERTIFICATE-----'
    """
    location, text = settings.get(f"{stem}.location"), settings.get(f"{stem}.pem")
    if location is not None and text is not None:
        raise ConfigurationError(f"kafka: set {stem}.location or {stem}.pem, not both")
    if location == "probe":  # librdkafka's name for the system's own certificates
        return None
    name = f"{stem}.pem"
    if location is not None:
        name = f"{stem}.location"
        try:
            text = Path(str(location)).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"kafka[{name!r}] = {str(location)!r} must be a PEM file that the driver can "
                f"read: {getattr(error, 'strerror', None) or 'it is not a text file'}"
            ) from None
    if text is None:
        return None
    label = PEM_SETTINGS.get(stem, "CERTIFICATE")
    if "-----BEGIN " not in str(text) or f"{label}-----" not in str(text):
        raise ConfigurationError(
            f"kafka[{name!r}] is not a PEM text: '-----BEGIN {label}-----' is missing"
        )
    return str(text)


def check_key(key: str, *, encrypted: bool) -> None:
    """Checks that Spark's Kafka source can read a private key too."""
    if "-----BEGIN ENCRYPTED PRIVATE KEY-----" in key:
        if not encrypted:
            raise ConfigurationError("kafka: the key is encrypted; set ssl.key.password")
        try:
            der = ssl.PEM_cert_to_DER_cert(_as_certificate(key))
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


def _as_certificate(key: str) -> str:
    # Python's ssl module decodes only certificates, so label the key as one.
    return key[key.index("-----BEGIN ") :].strip().replace("ENCRYPTED PRIVATE KEY", "CERTIFICATE")
