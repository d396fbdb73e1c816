"""What is shown of the log of a job: the lines of ranks as those of ranks that ``shardrun run`` starts.

A job system's marks before lines say the rank, and nothing its host. So what runs each rank says that first.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

from launcher.common.lines import Shown, record

if TYPE_CHECKING:
    from launcher.submission.base import Submission

_ON_HOST = "shardrun: on host "
HOST_SAYING = ("sh", "-c", f'echo "{_ON_HOST}$(uname -n)"; exec "$@"', "sh")
"""The words before a command that first say on which host it is."""


def saying_its_host(command: str) -> str:
    """The same of a command that is quoted for the shell."""
    return f"{shlex.join(HOST_SAYING)} {command}"


class Lines:
    """The lines of one log, with ``marks`` of whatever started the ranks before them, or of one ``rank``.

    ``job``: which of an array's jobs it is.
    """

    def __init__(
        self,
        submission: Submission,
        *marks: re.Pattern[str],
        job: str = "",
        rank: int | None = None,
        host: str = "",
    ) -> None:
        asked = submission.job
        self._marks, self._job, self._rank, self._json = marks, job, rank, asked.log_json
        self._hosts: dict[int, str] = {} if rank is None else {rank: host}
        size = submission.ranks
        self._shown = Shown(size, lambda rank: self._hosts.get(rank, "?"), asked.tee, as_json=self._json)

    def shown(self, line: str) -> str | None:
        """A line as it is shown; None where it is not."""
        rank, text = self._rank, line
        if rank is None and (found := next(filter(None, (mark.match(line) for mark in self._marks)), None)):
            rank, text = int(found[1]), line[found.end() :]
            if text.startswith(_ON_HOST):
                self._hosts[rank] = text.removeprefix(_ON_HOST).rstrip()
                return None
        if rank is not None and not self._shown.shows(rank):
            return None
        if self._json:
            return self._as_json(rank, text)
        whole = text if rank is None else self._shown.line(rank, "stdout", text).rstrip("\n")
        return f"[job {self._job}] {whole}" if self._job else whole

    def _as_json(self, rank: int | None, text: str) -> str:
        found = _said_by_run(text) if rank is None else None
        if found is None:
            # The log has both streams of a rank as one.
            found = record(rank, "" if rank is None else self._hosts.get(rank, "?"), None, text)
        return json.dumps({"job": self._job, **found} if self._job else found)


def _said_by_run(text: str) -> dict[str, object] | None:
    """The line of a rank as ``shardrun run --log-json`` wrote it, where that started the ranks itself."""
    if not text.startswith('{"time": '):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.keys() == record(0, "", None, "").keys() else None
