"""What a client is told where a request fails, and who may ask."""

from __future__ import annotations

import logging
from http import HTTPStatus
from pathlib import Path

import pytest

from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.generation.streams import EngineFullError
from launcher.group.answers import PredictError
from launcher.serving.access import Role, Tokens, check_site, client_of, read_tokens
from launcher.serving.refusals import RETRY_SECONDS, RefusalError, is_loss, refusal_of, without_paths

GONE = "the model's ranks ended before they answered: ask again later"


@pytest.mark.parametrize(
    ("error", "status", "retry", "words"),
    [
        (EngineFullError("no room"), 429, RETRY_SECONDS, "no room"),
        (RankFailedError("rank 1 of /a/b was killed"), 503, RETRY_SECONDS, GONE),
        (LaunchError("closed by /a/b"), 503, RETRY_SECONDS, GONE),
        (PredictError("index 7 of /a/b/c"), 422, None, "index 7 of <path>"),
        (ConfigError("wrong"), 400, None, "wrong"),
        (ShardrunError("wrong too"), 400, None, "wrong too"),
        (ValueError("/secret/place"), 500, None, "the server failed; its log says why"),
    ],
)
def test_what_is_told_of_errors(
    caplog: pytest.LogCaptureFixture, error: Exception, status: int, retry: float | None, words: str
) -> None:
    found = refusal_of(error)
    assert (found.status, found.retry, str(found)) == (status, retry, words)
    # What the client is not told is in the log.
    logged = {503: logging.WARNING, 500: logging.ERROR}
    assert [record.levelno for record in caplog.records] == ([logged[status]] if status in logged else [])
    assert refusal_of(found) is found


def test_which_errors_mean_that_ranks_are_gone() -> None:
    lost = [RankFailedError("x"), LaunchError("x")]
    others = [PredictError("x"), ConfigError("x"), EngineFullError("x"), ValueError("x")]
    assert all(map(is_loss, lost)) and not any(map(is_loss, others))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "invalid_request_error"),
        (404, "not_found_error"),
        (429, "rate_limit_error"),
        (499 - 1, "invalid_request_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_openais_words_for_a_status(status: int, kind: str) -> None:
    found = RefusalError(HTTPStatus.BAD_REQUEST, "x")
    found.status = status  # type: ignore[assignment]
    assert found.kind == kind


@pytest.mark.parametrize(
    ("status", "retry", "headers"),
    [
        (HTTPStatus.BAD_REQUEST, None, {}),
        (HTTPStatus.UNAUTHORIZED, None, {"WWW-Authenticate": "Bearer"}),
        (HTTPStatus.SERVICE_UNAVAILABLE, 0.2, {"Retry-After": "1"}),
        (HTTPStatus.TOO_MANY_REQUESTS, 2, {"Retry-After": "2"}),
        (HTTPStatus.TOO_MANY_REQUESTS, 2.6, {"Retry-After": "3"}),
    ],
)
def test_headers_of_a_refusal(status: HTTPStatus, retry: float | None, headers: dict[str, str]) -> None:
    assert RefusalError(status, "x", retry=retry).headers == headers


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/me/model.onnx: damaged", "<path>: damaged"),
        ("(/a/b) and '/a/b/' or /a/b, too", "(<path>) and '<path>' or <path>, too"),
        ("https://host/a/b and a/b/c stay, /v2 and 1/2", "https://host/a/b and a/b/c stay, /v2 and 1/2"),
    ],
)  # fmt: skip
def test_paths_are_left_out(text: str, shown: str) -> None:
    assert without_paths(text) == shown


@pytest.mark.parametrize(
    ("method", "site", "refused"),
    [
        ("POST", "cross-site", True),
        ("POST", "same-site", False),
        ("POST", "same-origin", False),
        ("POST", "none", False),
        ("POST", None, False),
        ("GET", "cross-site", False),
    ],
)
def test_pages_of_other_sites(method: str, site: str | None, refused: bool) -> None:
    if not refused:
        check_site(method, site)
        return
    with pytest.raises(RefusalError, match="pages of other sites may not ask") as caught:
        check_site(method, site)
    assert caught.value.status == 403


def test_a_client_is_its_token_however_its_header_is_written() -> None:
    own = client_of("Bearer a-long-token", "host")
    assert client_of("bearer   a-long-token ", "another host") == own != client_of("Bearer a-token", "host")
    assert "token" not in own and len(own) == 12
    assert client_of(None, "host") == "host"


@pytest.mark.parametrize("header", ["Basic a-long-token", "a-long-token", "Bearer", "Bearer a-long-toke", ""])
def test_headers_that_hold_no_token(header: str) -> None:
    tokens = Tokens((b"a-long-token", b"another-token"))
    with pytest.raises(RefusalError, match="a token is needed") as caught:
        tokens.check(header)
    assert caught.value.status == 401
    tokens.check(header, Role.FREE)
    tokens.check("BEARER  a-long-token")
    tokens.check("Bearer another-token")


def test_how_long_a_token_file_and_its_tokens_may_be(tmp_path: Path) -> None:
    path = tmp_path / "tokens"

    def read(text: bytes) -> Tokens:
        path.write_bytes(text)
        path.chmod(0o600)
        return read_tokens(path)

    assert read(b"12345678") == Tokens((b"12345678",))
    whole = b"12345678\n".ljust(1 << 16, b"#")
    assert read(whole).known == (b"12345678",)
    for text, message in {
        b"1234567": "at least 8 characters, found a token of 7",
        whole + b"#": "expected at most 65536 bytes, found more",
        b"# none\n\n": "expected a token on a line, found none",
    }.items():
        with pytest.raises(ConfigError, match=message):
            read(text)
    with pytest.raises(ConfigError, match=r"--token-file .*absent: No such file"):
        read_tokens(tmp_path / "absent")
