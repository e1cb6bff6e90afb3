"""Tokens for SASL OAUTHBEARER, from functions with the signature of librdkafka's ``oauth_cb``."""

import http.client
import importlib
import json
import math
import os
import re
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from kafka import errors as kafka_errors

from spark_eos._client.kafka_python import AbstractTokenProvider
from spark_eos._client.printable import printable
from spark_eos._client.time_limit import within
from spark_eos.errors import ConfigurationError, PrintableError, escaped

TokenFunction = Callable[[str], Any]
"""Takes librdkafka's ``sasl.oauthbearer.config`` and returns the token and its expiry in seconds
since 1970, optionally followed by the principal and a dict of SASL extensions."""

# Fraction of a token's lifetime after which it is renewed, as in Kafka's Java client.
_RENEW_AFTER: Final = 0.8
_TIMEOUT: Final = 10.0
# Time limit of a token function, in seconds: heartbeats wait for it.
_FUNCTION_TIMEOUT: Final = 20.0
# Seconds until the next attempt to renew a token that is still valid.
_RENEWAL_PAUSE: Final = 5.0
_PATIENCE: Final = 5.0
# Maximum size of an answer.
_MAX_BYTES: Final = 1 << 20
# Maximum lifetime to trust, in seconds: asking the endpoint once a day costs nothing.
_MAX_LIFETIME: Final = 86_400.0
_REGION: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")


class TokenError(PrintableError, kafka_errors.KafkaConnectionError):  # type: ignore[misc]
    """No token could be obtained; for kafka-python and its callers, a connection that failed."""

    def __init__(self, reason: str, *, permanent: bool) -> None:
        super().__init__(reason)
        self.permanent = permanent

    @property
    def text(self) -> str:
        """The reason, without the name that kafka-python's errors put before their text."""
        return escaped(str(self.args[0]))


@dataclass(frozen=True)
class ClientCredentials:
    """The client-credentials grant (RFC 6749, section 4.4), with SASL extensions (KIP-342)."""

    endpoint: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    # Trusted authorities as PEM; None for the system's own.
    authorities: str | None = field(default=None, repr=False)
    extensions: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __call__(self, _config: str = "") -> tuple[str, float, str, dict[str, str]]:
        form = {"grant_type": "client_credentials"}
        if self.scope is not None:
            form["scope"] = self.scope
        credentials = b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        request = urllib.request.Request(  # noqa: S310 - ClientSettings takes http and https only
            self.endpoint,
            urllib.parse.urlencode(form).encode(),
            {"Authorization": f"Basic {credentials}", "Accept": "application/json"},
        )
        context = ssl.create_default_context(cadata=self.authorities)
        try:
            token, expiry = _token(
                within(_TIMEOUT, partial(_body, request, context), "token-request")
            )
        except urllib.error.HTTPError as error:
            raise TokenError(
                f"sasl.oauthbearer.token.endpoint.url={self.endpoint!r} answered {error.code} "
                f"{printable(str(error.reason))}{_hint(error.code)}",
                # 408 (timeout) and 429 (too many requests) may be temporary.
                permanent=300 <= error.code < 500 and error.code not in (408, 429),
            ) from None
        except OSError as error:
            unknown = isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError)
            hint = ": set https.ca.location to the authority to trust" if unknown else ""
            raise TokenError(
                f"sasl.oauthbearer.token.endpoint.url={self.endpoint!r} can't be reached: "
                f"{printable(str(error))}{hint}",
                permanent=unknown,
            ) from None
        except (http.client.HTTPException, ValueError, KeyError, TypeError):
            raise TokenError(
                f"sasl.oauthbearer.token.endpoint.url={self.endpoint!r} did not answer with a "
                "JSON document that contains access_token (a string) and expires_in (a number of "
                "seconds above 0)",
                permanent=True,
            ) from None
        return token, expiry, "", dict(self.extensions)


def patiently(function: ClientCredentials, config: str) -> tuple[str, float, str, dict[str, str]]:
    """Retry for a few seconds: librdkafka retries after ten, too late for confluent-kafka."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return function(config)
        except TokenError as error:
            if error.permanent or time.monotonic() >= end:
                raise
        time.sleep(1)


def _hint(code: int) -> str:
    if code >= 500:
        return ""
    if code >= 400:
        return ": check sasl.oauthbearer.client.id, .client.secret and .scope"
    return ": the client secret is not sent to another URL; set the URL that this one redirects to"


def _token(body: bytes) -> tuple[str, float]:
    """Return the token and its expiry; raise ValueError, KeyError or TypeError if invalid."""
    document = json.loads(body)
    token, life = document["access_token"], document["expires_in"]
    if not isinstance(token, str) or not token or isinstance(life, bool):
        raise TypeError
    # Some endpoints send the number as a string.
    seconds = float(life)
    if not 0 < seconds < math.inf:
        raise ValueError
    return token, time.time() + min(seconds, _MAX_LIFETIME)


@dataclass(frozen=True)
class MskIam:
    """Tokens for Amazon MSK, signed with this machine's AWS credentials."""

    # None for the region that is set in the environment.
    region: str | None
    profile: str | None = None
    # The ARN of the role to assume.
    role: str | None = None
    session: str | None = None

    def __call__(self, _config: str = "") -> tuple[str, float]:
        provider = msk_signer()
        region = self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if not region:
            raise ConfigurationError(
                "sasl.mechanism=AWS_MSK_IAM: the names of the brokers do not contain the AWS "
                "region; set the environment variable AWS_REGION, on the executors too"
            )
        if self.role is not None:
            names = {} if self.session is None else {"sts_session_name": self.session}
            token, expiry = provider.generate_auth_token_from_role_arn(region, self.role, **names)
        elif self.profile is not None:
            token, expiry = provider.generate_auth_token_from_profile(region, self.profile)
        else:
            token, expiry = provider.generate_auth_token(region)
        return str(token), expiry / 1000


def called(function: TokenFunction, config: str) -> Any:
    """Call a token function within a time limit; raise TokenError or ConfigurationError."""
    try:
        return within(_FUNCTION_TIMEOUT, partial(function, config), "token-function")
    except (TokenError, ConfigurationError):
        raise
    except Exception as error:
        setting = "sasl.mechanism=AWS_MSK_IAM" if isinstance(function, MskIam) else "oauth_cb"
        raise TokenError(f"{setting} failed: {error!r}", permanent=False) from error


def msk_signer() -> Any:
    try:
        return importlib.import_module("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
    except ImportError as error:
        raise ConfigurationError(
            "sasl.mechanism=AWS_MSK_IAM needs the package aws-msk-iam-sasl-signer-python, on the "
            "executors too: pip install aws-msk-iam-sasl-signer-python"
        ) from error


def msk_region(bootstrap_servers: str) -> str | None:
    """Return the AWS region in the names of MSK's brokers; None if there is none."""
    match = _REGION.search(bootstrap_servers)
    return match[1] if match else None


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens for kafka-python, each reused until it is due for renewal; thread-safe."""

    def __init__(self, function: TokenFunction, config: str) -> None:
        super().__init__()
        self._function = function
        self._config = config
        self._extensions: dict[str, str] = {}
        self._lock = threading.Lock()
        self._token = ""
        self._expiry = 0.0
        self._renewal = 0.0

    def token(self) -> str:
        """Return a token that has not expired."""
        with self._lock:
            now = time.time()
            if now >= self._renewal:
                try:
                    self._renew(now)
                except TokenError as error:
                    now = time.time()  # the function may have taken a while
                    if error.permanent or now >= self._expiry:
                        raise
                    self._renewal = now + _RENEWAL_PAUSE
            return self._token

    def _renew(self, now: float) -> None:
        token, expiry, *more = self._made()
        if len(more) > 1:
            self._extensions.update(more[1])
        self._token, self._expiry = token, expiry
        self._renewal = now + _RENEW_AFTER * (expiry - now)

    def extensions(self) -> dict[str, str]:
        return dict(self._extensions)

    def _made(self) -> Any:
        try:
            made = called(self._function, self._config)
        except ConfigurationError as error:
            raise TokenError(error.text, permanent=True) from error
        if (
            not isinstance(made, tuple)
            or len(made) not in {2, 4}
            or not isinstance(made[0], str)
            or not isinstance(made[1], int | float)
            or not math.isfinite(made[1])
        ):
            raise TokenError(
                "oauth_cb must return a tuple of the token and its expiry in seconds since 1970",
                permanent=True,
            )
        return made


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Turns redirects into errors: Python would send the Authorization header to any host."""

    def redirect_request(self, *_arguments: Any, **_named: Any) -> None:
        return None


def _body(request: urllib.request.Request, context: ssl.SSLContext) -> bytes:
    handlers = [_NoRedirects(), urllib.request.HTTPSHandler(context=context)]
    if request.type == "http":
        # Don't use a proxy for http: it could read the client secret. https is tunneled.
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(request, timeout=_TIMEOUT) as answer:
            body: bytes = answer.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()  # The error holds the connection open.
        raise
    if len(body) > _MAX_BYTES:
        raise ValueError(f"the answer is longer than {_MAX_BYTES} bytes")
    return body
