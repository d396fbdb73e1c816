"""What a check is: a function that looks at one thing, and gives findings.

All run at the same time, and none may hold the others up: programs have a time-out, and so has each check. A
new check is one module in `launcher.checkup.checks`, with a `Check` in it, or an entry point of the group
``shardrun.checks`` that another package brings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from launcher.common.programs import SilentError
from sharding.common.registry import Names, Registry

if TYPE_CHECKING:
    from launcher.job.rank_table import RankTable

CHECK_SECONDS = 45.0
"""How long a check may take."""
_BUSY = "see what this machine is busy with"

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the screen. ``advice``: what to do, where it is not ok."""

    level: Level
    what: str
    advice: str = ""


@dataclass(frozen=True)
class Asked:
    """What the findings are for: the hosts of a rank table, if there is one."""

    table: RankTable | None = None


@dataclass(frozen=True)
class Check:
    """One check; they stand on the screen by ``order``. ``run`` gives nothing where there is nothing to
    say."""

    title: str
    order: int
    run: Callable[[Asked], Iterable[Finding]]


CHECKS = Names("launcher/checkup/checks", "shardrun.checks")
REGISTRY = Registry(CHECKS, Check)


def examine(asked: Asked, checks: Iterable[Check] | None = None) -> list[tuple[str, Finding]]:
    """The findings of all checks, with their titles."""
    chosen = sorted(checks or REGISTRY.all().values(), key=lambda check: check.order)
    found: dict[int, list[Finding]] = {}

    def run(place: int, check: Check) -> None:
        try:
            findings = list(check.run(asked))
        except SilentError as error:
            findings = [Finding("fail", str(error), _BUSY)]
        except Exception as error:  # a check that fails is a finding, and no reason to look no further
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            findings = [Finding("fail", f"this check itself failed ({text})")]
        found.setdefault(place, findings)

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(chosen)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(CHECK_SECONDS)
    for place in range(len(chosen)):
        late = f"no answer within {CHECK_SECONDS:.0f} s"
        found.setdefault(place, [Finding("fail", late, _BUSY)])
    return [(check.title, finding) for place, check in enumerate(chosen) for finding in found[place]]
