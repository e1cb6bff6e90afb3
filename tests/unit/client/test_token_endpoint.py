"""How a token endpoint could misuse a client secret or delay the client."""

import json
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spark_eos._client import oauth
from spark_eos._client.oauth import ClientCredentials, MskIam, TokenError, TokenProvider
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._worker import producer as producer_module
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.producer import TransactionalProducer
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.errors import ConfigurationError
from spark_eos.options import Limits
from support.client_settings import SERVERS
from support.http_server import Answer, Request, http_server

SECRET = "marker-secret"


def document(body: object) -> Answer:
    def answer(request: Request) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    return answer


def ask(url: str) -> tuple[str, float]:
    return ClientCredentials(url, "client", SECRET)()[:2]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_secret_goes_to_no_other_host(status: int) -> None:
    elsewhere: list[Any] = []

    def collect(request: Request) -> None:
        elsewhere.append(request.headers.get("authorization"))
        document({"access_token": "theirs", "expires_in": 60})(request)

    with http_server(collect) as other:

        def redirect(request: Request) -> None:
            request.send_response(status)
            request.send_header("location", other.replace("127.0.0.1", "localhost"))
            request.end_headers()

        with (
            http_server(redirect) as url,
            pytest.raises(
                TokenError, match=rf"{status}.*set the URL that this one redir"
            ) as caught,
        ):
            ask(url)
    assert elsewhere == []
    assert caught.value.permanent
    assert SECRET not in str(caught.value)


_TOKENS: list[object] = [None, "", 7, {}]
_LIVES: list[object] = [0, -5, "soon", None, True, [], float("nan"), float("inf"), "nan", "-1"]


@pytest.mark.parametrize(
    ("token", "life"),
    [*(("token", life) for life in _LIVES), *((token, 60) for token in _TOKENS)],
)
def test_an_answer_without_a_token_or_its_life(token: object, life: object) -> None:
    answer = document({"access_token": token, "expires_in": life})
    words = r"access_token \(a string\) and expires_in \(a number"
    with http_server(answer) as url, pytest.raises(TokenError, match=words):
        ask(url)


@pytest.mark.parametrize(("life", "seconds"), [(60, 60), ("3599", 3_599), (1e18, 86_400)])
def test_how_long_a_token_is_used(life: object, seconds: float) -> None:
    before = time.time()
    with http_server(document({"access_token": "token", "expires_in": life})) as url:
        token, expiry = ask(url)
    assert token == "token"
    assert before + seconds <= expiry <= time.time() + seconds


def test_a_token_function_must_return_an_expiry() -> None:
    provider = TokenProvider(lambda _: ("token", float("nan")), "")
    with pytest.raises(TokenError, match="expiry in seconds"):
        provider.token()


def test_checking_settings_by_librdkafka_asks_for_no_token() -> None:
    """For the first one, confluent-kafka waits up to ten seconds, and gives no reason."""
    asked: list[str] = []
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    ClientSettings({**SERVERS, **login, "oauth_cb": asked.append}).checked_by_librdkafka()
    assert asked == []


def _in_drops(request: Request) -> None:
    request.send_response(200)
    request.end_headers()
    for _ in range(600):
        request.wfile.write(b" ")
        request.wfile.flush()
        time.sleep(0.1)


def _headers_in_drops(request: Request) -> None:
    request.wfile.write(b"HTTP/1.0 200 OK\r\n")
    for _ in range(600):
        request.wfile.write(b"x")
        request.wfile.flush()
        time.sleep(0.1)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("answer", [_in_drops, _headers_in_drops])
def test_an_answer_that_comes_in_drops(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each drop arrives within a socket's timeout; all of them together do not."""
    monkeypatch.setattr(oauth, "_TIMEOUT", 1.0)
    with (
        http_server(answer) as url,
        pytest.raises(TokenError, match="no complete answer within 1 s"),
    ):
        ask(url)


@pytest.mark.timeout(30)
def test_an_answer_without_end() -> None:
    sent = []

    def endless(request: Request) -> None:
        request.send_response(200)
        request.end_headers()
        for _ in range(100):
            request.wfile.write(b" " * (1 << 20))
            sent.append(1)

    with http_server(endless) as url, pytest.raises(TokenError, match="did not answer with"):
        ask(url)
    assert len(sent) < 100


def test_what_the_endpoint_says_moves_no_cursor() -> None:
    def answer(request: Request) -> None:
        request.send_response(401, "\x1b[2J\x9bno entry")
        request.end_headers()

    with http_server(answer) as url, pytest.raises(TokenError) as caught:
        ask(url)
    assert "answered 401" in str(caught.value)
    assert "no entry" in str(caught.value)
    assert str(caught.value).isprintable()


OIDC = {
    "bootstrap.servers": "localhost:9092",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "orders",
    "sasl.oauthbearer.client.secret": SECRET,
}


def _settings(url: str) -> ClientSettings:
    return ClientSettings({**OIDC, "sasl.oauthbearer.token.endpoint.url": url})


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example.com/token",
        "http://127.0.0.1.example.com/token",
        "http://192.168.0.1/token",
        "http://localhost:secret@login.example.com/token",
        "https://user:secret@login.example.com/token",
        "https:///token",
        "https://[/token",
    ],
)
def test_the_secret_is_sent_over_tls(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"token\.endpoint\.url") as caught:
        _settings(url)
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://login.example.com/token",
        "http://localhost:80/token",
        "http://127.0.0.2/token",
        "http://[::1]:8080/token",
    ],
)
def test_on_this_host_it_need_not_be(url: str) -> None:
    assert _settings(url).security.sasl is not None


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
def test_a_secret_for_this_host_goes_through_no_proxy(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain HTTP would show it to the proxy."""
    seen: list[Any] = []

    def spy(request: Request) -> None:
        seen.append((request.path, request.headers["authorization"]))
        request.send_error(502)

    answer = document({"access_token": "token", "expires_in": 60})
    with http_server(answer) as url, http_server(spy) as proxy:
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(variable, proxy)
        assert ask(url)[0] == "token"
    assert seen == []


def test_every_client_gets_the_extensions() -> None:
    with http_server(document({"access_token": "token", "expires_in": 60})) as url:
        where = {"sasl.oauthbearer.token.endpoint.url": url}
        given = ClientSettings({**OIDC, **where, "sasl.oauthbearer.extensions": "a=b,c=d"})
        token, _expiry, _principal, extensions = given.for_consumer()["oauth_cb"]("")
        # librdkafka asks for none itself.
        assert "sasl.oauthbearer.method" not in given.for_producer("", 1)
        provider = given.for_kafka_python()["sasl_oauth_token_provider"]
        assert token == provider.token() == "token"
    assert extensions == provider.extensions() == {"a": "b", "c": "d"}


def test_an_endpoint_that_is_away_for_a_moment_is_asked_again() -> None:
    """With librdkafka, it would come ten seconds later, when confluent-kafka has given up."""
    given = {"access_token": "token", "expires_in": 60}
    replies: list[tuple[int, Any]] = [(503, b""), (200, given)]
    with http_server(lambda request: request.reply(*replies.pop(0))) as url:
        assert _settings(url).for_consumer()["oauth_cb"]("")[0] == "token"


@pytest.mark.parametrize(("status", "again"), [(503, True), (401, False)])
def test_a_task_without_a_token_is_retried_if_it_can_get_one(
    status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, again: bool
) -> None:
    monkeypatch.setattr(oauth, "_PATIENCE", 0.0)
    # librdkafka is to be the first that needs one.
    monkeypatch.setattr(Connections, "brokers", lambda *_: [])
    monkeypatch.setattr(producer_module, "fence_producer", lambda *_: None)
    limits = Limits(connect_timeout_ms=2_000, worker_directory=str(tmp_path))
    with http_server(lambda request: request.send_error(status)) as url:
        settings = WriterSettings(client=_settings(url), group_id="g", topic="t", limits=limits)
        producer = TransactionalProducer(settings)
        with (
            closing(producer),
            pytest.raises(TransactionError, match=f"answered {status}") as caught,
        ):
            producer.begin(lambda: None)
    assert caught.value.again is again


def test_a_token_is_used_until_it_expires_if_no_other_can_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Any] = [("first", time.time() + 100), OSError("no answer"), OSError("no answer")]

    def function(_config: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    provider = TokenProvider(function, "")
    assert provider.token() == "first"
    later = time.time() + 90
    monkeypatch.setattr(time, "time", lambda: later)
    assert provider.token() == "first"
    assert provider.token() == "first"  # not asked again at once
    assert len(answers) == 1
    monkeypatch.setattr(time, "time", lambda: later + 20)
    with pytest.raises(TokenError, match="oauth_cb failed"):
        provider.token()


def test_a_token_function_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "_FUNCTION_TIMEOUT", 0.1)
    forever = threading.Event()
    provider = TokenProvider(lambda _: forever.wait(), "")
    with pytest.raises(TokenError, match=r"oauth_cb failed: TimeoutError\('no complete answer"):
        provider.token()
    forever.set()


@pytest.mark.timeout(30)
def test_a_hanging_token_function_hangs_no_other_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of confluent-kafka that closes waits for the function."""
    monkeypatch.setattr(oauth, "_FUNCTION_TIMEOUT", 0.1)
    forever = threading.Event()
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    given = ClientSettings({**SERVERS, **login, "oauth_cb": lambda _: forever.wait()})
    with pytest.raises(TokenError, match="no complete answer"):
        given.for_consumer()["oauth_cb"]("")
    forever.set()


def test_a_token_that_amazon_refuses_is_not_blamed_on_a_function() -> None:
    provider = TokenProvider(MskIam("eu-west-1", profile="no such profile"), "")
    with pytest.raises(TokenError, match=r"sasl.mechanism=AWS_MSK_IAM failed"):
        provider.token()
