"""What is said of the lines that ranks print: where they go, and which are shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from launcher.errors import ConfigError
from ranks.common.settings import JOB
from sharding.common.ranges import in_ranges, parse_ranges
from sharding.common.storage import why_unwritable
from sharding.common.text import counted, shortened

_SECRET = (
    r"(?i)KEY|SECRET|(?<!(?:NEW|MAX)[_-])TOKEN|PASS|PWD$|CRED|AUTH|PRIVATE|COOKIE|SIGNATURE|\bSIG$"
    r"|SESSION|DSN|CONNECTION_STRING|JWT|BEARER|WEBHOOK|[_-]PAT$"
)
_MEMBER = r"""["']([^"']{1,200})["']\s*:"""
"""A name in an object of JSON."""
_USER_IN_ADDRESS = r"(://)[^\s?#]{1,1000}@"
"""A password may hold whatever it likes, also @ and /."""


class Logs(NamedTuple):
    """The options of a job that say it: see `launcher.job.options.Options`."""

    log_dir: Path | None = None
    tee: tuple[int, ...] | None = None
    log_json: bool = False

    def of_one(self, name: str, size: int | None = None) -> Logs:
        """Those of one of several groups of ranks of the job: it has a folder in the folder, and perhaps
        fewer ranks (``size``)."""
        return Logs(
            log_dir=None if self.log_dir is None else self.log_dir / name,
            tee=self.tee if size is None or self.tee is None else tuple(r for r in self.tee if r < size),
            log_json=self.log_json,
        )

    def check(self, size: int) -> None:
        """Raises `ConfigError` for a folder that cannot be the log folder of one job, and for ranks that are
        not among ``size``."""
        if self.tee and (far := [rank for rank in self.tee if rank >= size]):
            raise ConfigError(
                f"--tee {in_ranges(self.tee)}: expected ranks from 0 to {size - 1}, found {far[0]}: there "
                f"{'is' if size == 1 else 'are'} {counted(size, 'rank')}"
            )
        if self.log_dir is None:
            return
        try:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            if any(self.log_dir.iterdir()):
                raise self._taken()
            if not os.access(self.log_dir, os.W_OK | os.X_OK):
                raise ConfigError(
                    f"--log-dir {self.log_dir}: this process may not write there: name another folder"
                )
        except OSError as problem:
            raise self.unwritable(problem) from None

    def unwritable(self, problem: OSError) -> ConfigError:
        """The error to raise where the folder, or a file in it, cannot be made."""
        if isinstance(problem, FileExistsError) and self.log_dir is not None and self.log_dir.is_dir():
            return self._taken()  # by a job that was started at the same time
        return ConfigError(f"--log-dir {self.log_dir}: cannot write there: {why_unwritable(problem)}")

    def _taken(self) -> ConfigError:
        return ConfigError(
            f"--log-dir {self.log_dir}: expected a new or empty folder, found one with files in it: name "
            "another one for each job"
        )


def parse_ranks(text: str) -> tuple[int, ...]:
    """The ranks of a list such as 0,3 or 0-7. Raises `ConfigError`."""
    found = parse_ranges(text)
    if found is None:
        raise ConfigError(f"expected ranks such as 0,3 or 0-7, found {shortened(text, 80)!r}")
    return tuple(found)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables, in order; of those whose names speak of secrets only the name, and no user in an
    address. A value may itself be a command line, an address or an object with such names in it."""
    shown = {}
    for name in sorted(environ):
        secret = name == JOB.name or re.search(_SECRET, name)
        shown[name] = "(left out)" if secret else _value(environ[name])
    return shown


def _value(text: str) -> str:
    members = _without_members(text)
    return " ".join(words_without_secrets(text.split(" "))) if members is None else members


def _without_members(text: str) -> str | None:
    """A text that is an object of JSON with secrets in it, up to the first one; None for others."""
    found = (member.end() for member in re.finditer(_MEMBER, text) if re.search(_SECRET, member[1]))
    return None if (end := next(found, None)) is None else f"{text[:end]}(left out)"


def words_without_secrets(words: Iterable[str]) -> list[str]:
    """The words of a command line in the same way: ``NAME=VALUE``, as of ``--env``, and ``--name VALUE``."""
    shown: list[str] = []
    named = False
    for word in words:
        is_flag = word.startswith("-")
        shown.append("(left out)" if named and not is_flag else _word(word))
        named = is_flag and "=" not in word and re.search(_SECRET, word) is not None
    return shown


def _word(word: str) -> str:
    if (members := _without_members(word)) is not None:
        return members
    # A value may hold further ones, and end in some.
    for equals in re.finditer("=", word):
        if re.search(_SECRET, word[: equals.start()]):
            return f"{word[: equals.end()]}(left out)"
    return re.sub(_USER_IN_ADDRESS, r"\1...@", word)
