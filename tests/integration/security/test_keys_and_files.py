"""Key files: read once, refused if unusable, and never shown."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import PrivateFormat

from spark_eos._client.settings import ClientSettings
from spark_eos.errors import ConfigurationError
from support.certificates import rewritten
from support.client_settings import OIDC, SCRAM
from support.secured import Secured


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda key: rewritten(key, PrivateFormat.TraditionalOpenSSL), "PKCS#8.*openssl pkcs8"),
        (lambda key: rewritten(key, password="marker-secret"), "set ssl.key.password"),
        (lambda _: rewritten(trustme.CA().issue_cert("x").private_key_pem.bytes()), "KEY_VALUES"),
        (lambda _: "-----BEGIN PRIVATE KEY-----\nnot\n-----END PRIVATE KEY-----", "ssl.key.loc"),
    ],
    ids=["another form", "encrypted", "of another certificate", "broken"],
)
def test_keys_that_can_not_be_used_are_refused(secured: Secured, change: Any, words: str) -> None:
    certificate = {"ssl.certificate.pem": secured.client.chain}
    with pytest.raises(ConfigurationError, match=words) as caught:
        ClientSettings({**secured.tls(), **certificate, "ssl.key.pem": change(secured.client.key)})
    assert "marker" not in str(caught.value)


def test_a_key_that_java_can_not_decrypt_is_refused(secured: Secured) -> None:
    settings = {
        **secured.tls(),
        "ssl.certificate.pem": secured.client.chain,
        "ssl.key.pem": rewritten(secured.client.key, password="marker-secret"),
        "ssl.key.password": "marker-secret",
    }
    with pytest.raises(ConfigurationError, match=r"PBES2.*ssl\.key\.pem") as caught:
        ClientSettings(settings)
    assert "marker" not in str(caught.value)


def test_files_are_read_once_and_travel(secured: Secured, tmp_path: Path) -> None:
    file = tmp_path / "authority.pem"
    file.write_text(secured.authority_file.read_text())
    client = ClientSettings({**secured.tls(), "ssl.ca.location": str(file)})
    file.unlink()
    travelled = pickle.loads(pickle.dumps(client))  # noqa: S301 - made here
    assert travelled == client
    assert travelled.for_producer("id", 1)["ssl.ca.pem"] == secured.authority_file.read_text()
    travelled.checked_by_librdkafka()
    travelled.for_kafka_python()


def test_nothing_secret_is_shown(secured: Secured) -> None:
    key = {"ssl.certificate.pem": secured.client.chain, "ssl.key.pem": secured.client.key}
    shown = [
        ClientSettings(SCRAM),
        ClientSettings(OIDC),
        ClientSettings({**secured.tls(), **key}),
    ]
    for client in [*shown, *(copy.copy(c.security) for c in shown)]:
        for text in (repr(client), str(client)):
            assert "marker" not in text
            assert "PRIVATE" not in text
    assert "SASL_SSL SCRAM-SHA-512 as alice" in repr(shown[0])
