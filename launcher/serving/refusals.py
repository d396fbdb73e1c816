"""What a client is told where a request fails: a status and one sentence, without paths of this machine."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from http import HTTPStatus

from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.generation.streams import EngineFullError
from launcher.group.requests import PredictError
from sharding.common.text import shortened

log = logging.getLogger(__name__)

RETRY_SECONDS = 2
"""When a client may ask again whose request found no room, or ranks that are starting."""
_PATH = re.compile(r"(?<![\w:/.])(?:/[^\s/:,;'\"()]+){2,}/?")


_MOST_TOLD = 600
"""Characters of a message, which may quote what a client wrote: clients of gRPC take 8 KiB of metadata, in
which one character may take twelve bytes."""


class RefusalError(ShardrunError):
    """A request that is not answered. ``kind``: OpenAI's type of the error."""

    def __init__(self, status: HTTPStatus, message: str, *, retry: float | None = None) -> None:
        super().__init__(shortened(message, _MOST_TOLD))
        self.status, self.retry = status, retry

    @property
    def kind(self) -> str:
        """The error's type, in OpenAI's words."""
        if self.status == HTTPStatus.UNAUTHORIZED:
            return "authentication_error"
        if self.status == HTTPStatus.NOT_FOUND:
            return "not_found_error"
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"

    @property
    def headers(self) -> dict[str, str]:
        """Those that go with the status."""
        found = {} if self.retry is None else {"Retry-After": str(max(1, round(self.retry)))}
        if self.status == HTTPStatus.UNAUTHORIZED:
            found["WWW-Authenticate"] = "Bearer"
        return found


@dataclass(frozen=True)
class _Row:
    """How one class of errors is told."""

    error: type[BaseException]
    status: HTTPStatus
    retry: float | None = None
    own_words: bool = True
    """Whether its text is for the client; else that is in the log alone."""


_ROWS = (
    _Row(EngineFullError, HTTPStatus.TOO_MANY_REQUESTS, RETRY_SECONDS),
    _Row(RankFailedError, HTTPStatus.SERVICE_UNAVAILABLE, RETRY_SECONDS, own_words=False),
    _Row(LaunchError, HTTPStatus.SERVICE_UNAVAILABLE, RETRY_SECONDS, own_words=False),
    _Row(PredictError, HTTPStatus.UNPROCESSABLE_ENTITY),
    _Row(ConfigError, HTTPStatus.BAD_REQUEST),
    _Row(ShardrunError, HTTPStatus.BAD_REQUEST),
)


def is_loss(error: BaseException) -> bool:
    """Whether an error means that a model's ranks are gone."""
    return isinstance(error, RankFailedError | LaunchError)


def refusal_of(error: BaseException) -> RefusalError:
    """What a client is told of an error."""
    if isinstance(error, RefusalError):
        return error
    for row in _ROWS:
        if isinstance(error, row.error):
            if not row.own_words:
                log.warning("a request failed: %s", error)
                return RefusalError(
                    row.status,
                    "the model's ranks ended before they answered: ask again later",
                    retry=row.retry,
                )
            return RefusalError(row.status, without_paths(str(error)), retry=row.retry)
    log.error("a request failed", exc_info=error)
    return RefusalError(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log says why")


def without_paths(text: str) -> str:
    """A message whose paths are left out: where files lie here is nobody's business."""
    return _PATH.sub("<path>", text)
