"""Certificates issued by the tests' own authority."""

import datetime
import os
import subprocess

import trustme
from cryptography.hazmat.primitives import serialization

from spark_eos.testing.broker_security import Certificate

_LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
_AGO = datetime.datetime(2021, 1, 1, tzinfo=datetime.timezone.utc)


def pem(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


def issued(
    authority: trustme.CA, *names: str, expired: bool = False, common_name: str | None = None
) -> Certificate:
    """A certificate for host names or addresses, with its key in the format that Java reads."""
    leaf = authority.issue_cert(
        *names,
        common_name=common_name,
        not_before=_LONG_AGO if expired else None,
        not_after=_AGO if expired else None,
    )
    chain = "".join(blob.bytes().decode() for blob in leaf.cert_chain_pems)
    return Certificate(chain, rewritten(leaf.private_key_pem.bytes()))


def encrypted(key: str, password: str) -> str:
    """A PEM key, encrypted so that Java 17 can decrypt it."""
    command = ["openssl", "pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-passout", "env:PASSWORD"]
    environment = {**os.environ, "PASSWORD": password}
    return subprocess.check_output(command, input=key, env=environment, text=True)


def rewritten(
    key: bytes | str,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
    password: str | None = None,
) -> str:
    """A PEM key in another format."""
    encoded = key.encode() if isinstance(key, str) else key
    loaded = serialization.load_pem_private_key(encoded, None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        form,
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password.encode()),
    ).decode()
