"""What came of each cell, kept over several runs of scripts/failures.py: on which day, of which commit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.clusters import ROOT
from tests.failures.deaths import SECONDS, find
from tests.failures.jobs import Outcome

Key = tuple[str, str, int]
_LONGEST = 300


class Records:
    """The records in the files ``*.jsonl`` of a folder, one file a day. ``last``: the newest of each cell,
    by death, starter and number of hosts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.last: dict[Key, Mapping[str, Any]] = {}
        for path in sorted(folder.glob("*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                self._take(json.loads(line))

    def is_right(self, death: str, starter: str, hosts: int, *, committed: bool = False) -> bool:
        """Whether that cell was right when it was last tried; ``committed``: and is known to have been tried
        of a commit, with nothing changed since."""
        found = self.last.get((death, starter, hosts))
        if found is None or found["problems"] or is_old(found):
            return False
        return not committed or (bool(found["commit"]) and not found["commit"].endswith("+"))

    def add(self, death: str, starter: str, hosts: int, tries: int, outcome: Outcome) -> dict[str, Any]:
        """Keeps what came of a cell; gives the record."""
        record = {
            "death": death, "starter": starter, "hosts": hosts, "tries": tries, "date": _today(),
            "commit": _commit(), "problems": [_plain(problem) for problem in outcome.problems],
            "first_line": _plain(outcome.first_line), "code": outcome.code,
            "seconds": round(outcome.seconds, 2),
        }  # fmt: skip
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{record['date']}.jsonl").open("a", encoding="utf-8") as kept:
            kept.write(json.dumps(record) + "\n")
        self._take(record)
        return record

    def _take(self, record: Mapping[str, Any]) -> None:
        key = record["death"], record["starter"], record["hosts"]
        before = self.last.get(key)
        if before is None or before["date"] <= record["date"]:
            self.last[key] = record


def is_old(record: Mapping[str, Any]) -> bool:
    """Whether a cell was right by a longer time than it has now: a port that is taken had 15 s more."""
    return find(record["death"]).how == "port" and float(record["seconds"]) > SECONDS


def _plain(text: str) -> str:
    """Without the folders of this machine."""
    return re.sub(r"/tmp/\S+", "...", text.replace(f"{ROOT}{os.sep}", ""))[:_LONGEST]


def _today() -> str:
    return time.strftime("%Y-%m-%d")


def _commit() -> str:
    """The commit, with a "+" where files have been changed since; "" outside of a repository."""
    words = ["git", "-C", str(ROOT)]
    try:
        found = subprocess.run([*words, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True,
                               check=True).stdout.strip()  # fmt: skip
        changed = subprocess.run([*words, "status", "--porcelain", "--", "launcher", "ranks", "sharding"],
                                 capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{found}{'+' if changed else ''}"
