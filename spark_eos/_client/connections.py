"""kafka-python connections that explain why a listener refuses them, and don't retry forever."""

import ssl
import time
from typing import Any, Final

from kafka import errors as kafka_errors

from spark_eos._client.kafka_logs import our_connections
from spark_eos._client.kafka_python import (
    NodeConnections,
    causes,
    closed_by_peer,
)
from spark_eos._client.oauth import TokenError
from spark_eos._client.printable import printable
from spark_eos._client.security import Security
from spark_eos._client.settings import ClientSettings
from spark_eos.errors import AuthenticationError

# Seconds between two connection attempts, and the time limit of one attempt.
_PAUSE: Final = 0.05
_ATTEMPT: Final = 1.0
# Maximum number of addresses that an error names.
_NAMED: Final = 5
# Seconds to tolerate closed connections. A listener for another protocol closes each connection
# silently. A load balancer does the same while its brokers restart, but not for long.
_SILENCE: Final = 5.0
_TLS_WANTED: Final = "set security.protocol to SSL or SASL_SSL"
# OpenSSL's codes for a failed verification.
_EXPIRED, _NOT_YET, _HOST, _ADDRESS = 10, 9, 62, 64


class ConnectionManager(NodeConnections):
    """Connections to one cluster; stops retrying if a listener refuses the client."""

    # If TLS or SASL fails, `AuthenticationError` is raised at once. Until the cluster has been
    # reached, it is also raised if the listener closes every connection for a few seconds.
    # kafka-python would retry in both cases.

    def __init__(
        self, selector: Any, settings: ClientSettings, configuration: dict[str, Any]
    ) -> None:
        self._security = settings.security
        self._refusal: AuthenticationError | None = None
        self._closing_since: float | None = None
        # The last failure of each address.
        self._failures: dict[str, str] = {}
        with our_connections():
            super().__init__(selector, configuration)

    def reach(self, seconds: float) -> None:
        """Wait until a broker answers at its advertised address."""
        until = time.monotonic() + seconds
        super().reach(seconds)
        while True:
            left = until - time.monotonic()
            try:
                self._net.run(self.meet, 1000 * min(_ATTEMPT, max(_PAUSE, left)))
            except kafka_errors.KafkaError as error:
                self.check()
                if left <= 0 or not error.retriable:
                    raise
                time.sleep(_PAUSE)
            else:
                return

    def unreached(self, node: int | None = None) -> str:
        """Return the known reason why a node, by default any node, can't be reached."""
        if self.throttles(node):
            return "the broker throttles this client, which has exceeded a quota"
        advertised = [a for n, a in self.addresses().items() if node in {None, n}]
        asked = advertised if self.bootstrapped else [*self._failures]
        if failed := [self._failures[address] for address in asked if address in self._failures]:
            return failed[-1]
        if not advertised:
            return "no broker has answered yet"
        names = ", ".join(map(printable, advertised[:_NAMED]))
        return f"no answer from {names}, which the brokers name in their advertised.listeners"

    def check(self) -> None:
        """Raise `AuthenticationError` if a connection was refused permanently."""
        refused = self.refused()
        if refused is not None:
            raise refused

    def refused(self) -> AuthenticationError | None:
        """Return a permanent refusal and forget it, because a later connection may succeed."""
        refusal, self._refusal = self._refusal, None
        return refusal

    def failed(self, address: str, error: BaseException, *, reached: bool) -> None:
        """Remember why a connection failed, for the errors of callers that need the connection."""
        listener = f"{printable(address)} ({self._security})"
        reason = refusal(error, self._security)
        if reason is not None:
            self._refusal = AuthenticationError(f"{listener}: {reason}")
            self._refusal.__cause__ = error
            return
        if reached:
            listener += ", which a broker names in its advertised.listeners"
        if reached or not closed_by_peer(error):
            self._failures[address] = f"{listener}: {error}"
            self._closing_since = None
            return
        self._failures[address] = failure = (
            f"{listener}: the listener closes each connection without an answer; check that it "
            f"speaks security.protocol={self._security.protocol}, and see the broker's log"
        )
        now = time.monotonic()
        if self._closing_since is None:
            self._closing_since = now
        elif now - self._closing_since > _SILENCE:
            self._refusal = AuthenticationError(failure)


def refusal(error: BaseException, security: Security) -> str | None:
    """Explain a permanent refusal, with the setting to change; return None for other errors."""
    for cause in causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"{cause.verify_message or cause.reason}: {_certificate_advice(cause)}"
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            return _alert(cause, security)
        if isinstance(cause, TokenError) and cause.permanent:
            return str(cause)
        if isinstance(cause, kafka_errors.InvalidReceiveError) and security.tls is None:
            return f"the listener speaks TLS, not {security.protocol}: {_TLS_WANTED}"
        reason = _sasl_answer(cause, security)
        if reason is not None:
            return reason
    return None


def _sasl_answer(error: BaseException, security: Security) -> str | None:
    if isinstance(error, kafka_errors.UnsupportedSaslMechanismError):
        return f"the listener does not support this mechanism: change sasl.mechanism. {error}"
    if isinstance(error, kafka_errors.IllegalSaslStateError):
        return f"the listener does not speak SASL: change security.protocol. {error}"
    if isinstance(error, kafka_errors.SaslAuthenticationFailedError):
        advice = "check security.protocol" if security.sasl is None else security.sasl.advice
        return f"the broker refuses the credentials: {advice}. {error}"
    return None


def _certificate_advice(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in {_HOST, _ADDRESS}:
        return (
            "bootstrap.servers and the broker's advertised.listeners must use a name that its "
            "certificate contains (or set ssl.endpoint.identification.algorithm=none)"
        )
    if error.verify_code in {_EXPIRED, _NOT_YET}:
        return "the broker needs a certificate that is valid now"
    return "set ssl.ca.location to the authority that signed the broker's certificate"


def _alert(error: ssl.SSLError, security: Security) -> str:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    shown = security.tls is not None and security.tls.certificate is not None
    if "alert" in reason and "cert" in reason:
        what = (
            "the broker does not accept the client's certificate, which may have expired or come "
            "from an authority that it does not trust: change ssl.certificate.location"
            if shown
            else "the broker asks for a client certificate: set ssl.certificate.location and "
            "ssl.key.location"
        )
        return f"{what} ({reason})"
    if "alert unknown ca" in reason:
        return (
            "the broker does not trust the authority of the client's certificate: change "
            f"ssl.certificate.location ({reason})"
        )
    return f"TLS failed: {reason}; does the listener speak TLS? Check security.protocol"
