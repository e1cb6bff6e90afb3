"""An authority for OAUTHBEARER tokens: its keys as a file, and a token endpoint (RFC 6749)."""

import base64
import json
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from support.http_server import Request, http_server

ISSUER = "https://issuer.test"
AUDIENCE = "kafka"
_KEY_ID = "test-key"


@dataclass
class TokenAuthority:
    """Signs tokens that the broker accepts."""

    # The secrets of the endpoint's clients, by client id.
    clients: dict[str, str] = field(default_factory=dict)
    lifetime: float = 300  # lifetime of the endpoint's tokens, in seconds
    # Client id and scope of each request to the endpoint.
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    _key: rsa.RSAPrivateKey = field(
        default_factory=lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048)
    )

    def write_jwks(self, path: Path) -> str:
        """Writes the public keys (RFC 7517) and returns their URL."""
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        keys = {"keys": [{**public, "kid": _KEY_ID, "use": "sig", "alg": "RS256"}]}
        path.write_text(json.dumps(keys), encoding="utf-8")
        return path.as_uri()

    def token(self, subject: str, lifetime: float | None = None) -> tuple[str, float]:
        """A token of a principal, and its expiry in seconds since 1970."""
        now = time.time()
        expiry = now + (self.lifetime if lifetime is None else lifetime)
        claims: dict[str, Any] = {
            "sub": subject,
            "iss": ISSUER,
            "aud": AUDIENCE,
            "iat": int(min(now, expiry) - 1),
            "exp": int(expiry),
        }
        headers = {"kid": _KEY_ID}
        return jwt.encode(claims, self._key, algorithm="RS256", headers=headers), int(expiry)


@contextmanager
def token_endpoint(authority: TokenAuthority) -> Iterator[str]:
    """Serves the client-credentials grant on 127.0.0.1; yields its URL."""

    def answer(request: Request) -> None:
        if request.command != "POST":
            request.send_error(405)
            return
        form = urllib.parse.parse_qs(request.body.decode())
        client, secret = _credentials(request.headers.get("authorization", ""), form)
        scope = form.get("scope", [None])[0]
        authority.asked.append((client, scope))
        if form.get("grant_type") != ["client_credentials"]:
            request.reply(400, {"error": "unsupported_grant_type"})
        elif authority.clients.get(client) != secret:
            request.reply(401, {"error": "invalid_client"})
        else:
            token, expiry = authority.token(client)
            expires_in = int(expiry - time.time())
            granted = {"access_token": token, "token_type": "Bearer", "expires_in": expires_in}
            request.reply(200, granted)

    with http_server(answer) as url:
        yield url


def _credentials(authorization: str, form: dict[str, list[str]]) -> tuple[str, str]:
    if authorization.startswith("Basic "):
        text = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        client, _, secret = text.partition(":")
        # RFC 6749 requires both to be form-encoded; not every client does so.
        return client, secret
    return form.get("client_id", [""])[0], form.get("client_secret", [""])[0]
