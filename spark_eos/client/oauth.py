"""Tokens for SASL OAUTHBEARER, by functions that are called as librdkafka's ``oauth_cb`` is."""

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kafka.net.sasl.oauth import AbstractTokenProvider

from spark_eos.client.printable import printable
from spark_eos.client.token_request import answer_to
from spark_eos.errors import ConfigurationError

TokenFunction = Callable[[str], Any]
"""Takes librdkafka's ``sasl.oauthbearer.config`` and returns the token and its expiry in seconds
since 1970; then also, if it likes, the principal and a dict of SASL extensions."""

# Kafka's Java client, too, renews a token when so much of its life is over.
_RENEWED_AFTER: Final = 0.8
_TIMEOUT: Final = 10.0
# An endpoint may say what it likes; asking it once a day costs nothing.
_LONGEST_LIFE: Final = 86_400.0
_REGION: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")


class TokenError(Exception):
    """There is no token.

    Attributes:
        permanent: Whether asking again is of no use.
    """

    def __init__(self, reason: str, *, permanent: bool) -> None:
        super().__init__(reason)
        self.permanent = permanent


@dataclass(frozen=True)
class ClientCredentials:
    """The client-credentials grant (RFC 6749, section 4.4).

    Attributes:
        endpoint: URL of the token endpoint.
        client_id: Who asks.
        client_secret: Their secret.
        scope: What for; None to leave it to the endpoint.
        authorities: PEM of authorities to trust; None for the system's.
    """

    endpoint: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    authorities: str | None = field(default=None, repr=False)

    def __call__(self, _config: str = "") -> tuple[str, float]:
        """Asks for a token.

        Raises:
            TokenError: There is none.
        """
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
            return _token(answer_to(request, context, _TIMEOUT))
        except urllib.error.HTTPError as error:
            raise TokenError(
                f"sasl.oauthbearer.token.endpoint.url={self.endpoint!r} answered {error.code} "
                f"{printable(str(error.reason))}{_hint(error.code)}",
                # 408 and 429 ask for patience.
                permanent=300 <= error.code < 500 and error.code not in (408, 429),
            ) from None
        except OSError as error:
            unknown = isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError)
            hint = ": https.ca.location names the authority to trust" if unknown else ""
            raise TokenError(
                f"sasl.oauthbearer.token.endpoint.url={self.endpoint!r} can't be reached: "
                f"{printable(str(error))}{hint}",
                permanent=unknown,
            ) from None
        except (http.client.HTTPException, ValueError, KeyError, TypeError):
            raise TokenError(
                f"sasl.oauthbearer.token.endpoint.url={self.endpoint!r} did not answer with a "
                "JSON document that has access_token, a text, and expires_in, a number of seconds "
                "above 0",
                permanent=True,
            ) from None


def _hint(code: int) -> str:
    if code >= 500:
        return ""
    if code >= 400:
        return ": sasl.oauthbearer.client.id, .client.secret or .scope is not right"
    return ": the client secret is for this URL alone; set the one that it redirects to"


def _token(body: bytes) -> tuple[str, float]:
    """The token and its expiry; or ValueError, KeyError, TypeError."""
    document = json.loads(body)
    token, life = document["access_token"], document["expires_in"]
    if not isinstance(token, str) or not token or isinstance(life, bool):
        raise TypeError
    # Some endpoints have it as a text.
    seconds = float(life)
    if not 0 < seconds < math.inf:
        raise ValueError
    return token, time.time() + min(seconds, _LONGEST_LIFE)


@dataclass(frozen=True)
class MskIam:
    """Tokens for Amazon MSK, signed with the credentials that AWS' tools find on the machine.

    Attributes:
        region: AWS region; None for that of the environment.
        profile: Named profile of the credentials, if any.
        role: ARN of a role to assume, if any.
        session: Name of the role's session, if any.
    """

    region: str | None
    profile: str | None = None
    role: str | None = None
    session: str | None = None

    def __call__(self, _config: str = "") -> tuple[str, float]:
        """Signs a token.

        Raises:
            ConfigurationError: The package or the region is missing.
        """
        provider = msk_signer()
        region = self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if not region:
            raise ConfigurationError(
                "sasl.mechanism=AWS_MSK_IAM: the AWS region is not in the name of the brokers; "
                "set the environment variable AWS_REGION, on the executors too"
            )
        if self.role is not None:
            names = {} if self.session is None else {"sts_session_name": self.session}
            token, expiry = provider.generate_auth_token_from_role_arn(region, self.role, **names)
        elif self.profile is not None:
            token, expiry = provider.generate_auth_token_from_profile(region, self.profile)
        else:
            token, expiry = provider.generate_auth_token(region)
        return str(token), expiry / 1000


def msk_signer() -> Any:
    """Amazon's signer.

    Raises:
        ConfigurationError: It is not installed.
    """
    try:
        return importlib.import_module("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
    except ImportError as error:
        raise ConfigurationError(
            "sasl.mechanism=AWS_MSK_IAM needs the package aws-msk-iam-sasl-signer-python, on the "
            "executors too: pip install 'spark-eos[msk-iam]'"
        ) from error


def msk_region(bootstrap_servers: str) -> str | None:
    """The AWS region that the names of MSK's brokers tell, if they do."""
    found = _REGION.search(bootstrap_servers)
    return found[1] if found else None


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens for kafka-python, each used until it is due for renewal.

    Args:
        function: Makes a token.
        config: What it is called with.
        extensions: SASL extensions (KIP-342).
    """

    def __init__(self, function: TokenFunction, config: str, extensions: Mapping[str, str]) -> None:
        super().__init__()
        self._function = function
        self._config = config
        self._extensions = dict(extensions)
        self._lock = threading.Lock()
        self._token = ""
        self._renewal = 0.0

    def token(self) -> str:
        """A token that has not expired.

        Raises:
            TokenError: There is none.
        """
        with self._lock:
            now = time.time()
            if now >= self._renewal:
                token, expiry, *more = self._made()
                if len(more) > 1:
                    self._extensions.update(more[1])
                self._token = token
                self._renewal = now + _RENEWED_AFTER * (expiry - now)
            return self._token

    def extensions(self) -> dict[str, str]:
        """The SASL extensions."""
        return dict(self._extensions)

    def _made(self) -> Any:
        try:
            made = self._function(self._config)
        except TokenError:
            raise
        except ConfigurationError as error:
            raise TokenError(str(error), permanent=True) from error
        except Exception as error:
            raise TokenError(f"oauth_cb failed: {error!r}", permanent=False) from error
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
