"""Who may ask: tokens, and what a client is called in the fair queue and in logs."""

from __future__ import annotations

import hmac
import logging
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path

from launcher.common.files import read_at_most
from launcher.errors import ConfigError
from launcher.serving.refusals import RefusalError

ACCESS = "shardrun.access"
"""The log of requests."""
_LEAST, _MOST_BYTES = 8, 1 << 16
_USER, _ADMIN = b"user", b"admin"


class Role(Enum):
    """What a route asks of whoever uses it."""

    FREE = "nothing"
    USER = "any token, if there are tokens"
    LOADS = "as a user; where tokens have roles, an admin's"
    CHANGES = "an admin's token, always"


@dataclass(frozen=True)
class Tokens:
    """The tokens of which one must come with each request; none: everybody may ask. ``admins``: those that
    may change models."""

    known: tuple[bytes, ...] = ()
    admins: tuple[bytes, ...] = ()

    def check(self, authorization: str | None, role: Role = Role.USER) -> None:
        """Raises `RefusalError` for a request without one that may do this; wrong tokens take as long as
        right ones."""
        if role is Role.FREE or (not self.known and role is not Role.CHANGES):
            return
        scheme, given = _parts(authorization or "")
        matches = [hmac.compare_digest(given, one) for one in self.known]
        rules = [hmac.compare_digest(given, one) for one in self.admins]
        if self.known and (scheme != "bearer" or not any(matches)):
            raise RefusalError(
                HTTPStatus.UNAUTHORIZED, "a token is needed: send the header Authorization: Bearer TOKEN"
            )
        needed = role is Role.CHANGES or (role is Role.LOADS and self.admins)
        if needed and not any(rules):
            raise RefusalError(
                HTTPStatus.FORBIDDEN,
                "this takes the token of an admin: a line `TOKEN admin` of the server's --token-file"
                + ("" if self.known else ", and there is none"),
            )


def read_tokens(path: Path) -> Tokens:
    """The tokens of a file, one a line, each with its role after it if it has one; # begins a comment. Raises
    `ConfigError`."""
    try:
        data = read_at_most(path, _MOST_BYTES + 1)
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"--token-file {path}: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"--token-file {path}: expected at most {_MOST_BYTES} bytes, found more")
    if mode & 0o077:
        raise ConfigError(f"--token-file {path}: others may read it (mode {mode & 0o777:o}); `chmod 600` it")
    lines = [line.strip() for line in data.splitlines()]
    tokens, admins = [], []
    for line in lines:
        if not line or line.startswith(b"#"):
            continue
        token, *more = line.split()
        if more not in ([], [_ADMIN], [_USER]):  # the token itself is told to nobody
            raise ConfigError(
                f"--token-file {path}: expected TOKEN, TOKEN user or TOKEN admin on a line, found more words"
            )
        tokens.append(token)
        if more == [_ADMIN]:
            admins.append(token)
    if not tokens:
        raise ConfigError(f"--token-file {path}: expected a token on a line, found none")
    if short := [line for line in tokens if len(line) < _LEAST]:
        raise ConfigError(
            f"--token-file {path}: expected at least {_LEAST} characters, found a token of {len(short[0])}"
        )
    return Tokens(tuple(tokens), tuple(admins))


def _parts(authorization: str) -> tuple[str, bytes]:
    """Scheme and token of the header, whose bytes came as Latin-1."""
    scheme, _, token = authorization.partition(" ")
    return scheme.lower(), token.strip().encode("latin-1", "replace")


def client_of(authorization: str | None, host: str) -> str:
    """What tells clients apart: their token, however its header is written, else their address."""
    return host if authorization is None else sha256(_parts(authorization)[1]).hexdigest()[:12]


def check_site(method: str, site: str | None) -> None:
    """Raises `RefusalError` for what a page of another site has a browser ask; ``site``: the header
    Sec-Fetch-Site."""
    if method == "POST" and site == "cross-site":
        raise RefusalError(HTTPStatus.FORBIDDEN, "pages of other sites may not ask this server")


def client_log() -> None:
    """Has a line of JSON written for each request, on standard error."""
    log = logging.getLogger(ACCESS)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
