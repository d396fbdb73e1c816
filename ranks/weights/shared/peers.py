"""Which processes may attach to shared weights: those listed, and descendants of one process.

A process is its number and its start time (proc(5), /proc/PID/stat), since the kernel gives numbers again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ranks.common.processes import Status, status
from ranks.errors import WeightsError

LARGEST_PID = 1 << 22  # the kernel's PID_MAX_LIMIT
MOST_PIDS = 1024
MOST_ANCESTORS = 1024
"""How far above a process its family is looked for."""
_MOST_STRANGERS = 4096


@dataclass(frozen=True)
class Guests:
    """Who may attach, besides the owner itself."""

    listed: Mapping[int, int] = field(default_factory=dict)
    """Start times by process id."""
    family: tuple[int, int] | None = None
    """Process id and start time of the process that may attach with its descendants."""
    _strangers: set[tuple[int, int]] = field(default_factory=set, compare=False, repr=False)
    """Whoever was refused once is refused quickly, with all above it: refusing costs the owner's time."""

    def refusal(self, pid: int) -> str | None:
        """Why the process that the kernel names as a connection's other end may not attach; None: it may."""
        if pid == os.getpid():
            return None
        if pid <= 0:
            return "the process runs in a PID namespace that the owner cannot see"
        now = status(pid)
        if now is None:
            return f"process {pid} has ended"
        start = self.listed.get(pid)
        if start == now.start:
            return None
        if self.family is not None and (
            (pid, now.start) == self.family or _descends(pid, self.family, self._strangers)
        ):
            return None
        if start is not None:
            return (
                f"process {pid} is not the one that the owner listed: that one has ended, and its number was "
                "given to another process"
            )
        return f"process {pid} is not among those that may attach ({self._told()})"

    def _told(self) -> str:
        parts = []
        if self.listed:
            shown = ", ".join(map(str, list(self.listed)[:8])) + (", ..." if len(self.listed) > 8 else "")
            parts.append(f"the listed process{'es' if len(self.listed) > 1 else ''} {shown}")
        if self.family is not None:
            parts.append(f"process {self.family[0]} and its descendants")
        return " and ".join(parts) or "none but the owner"


def guests(pids: Iterable[int], what: str, family: int | None = None) -> Guests:
    """`Guests` of the running processes ``pids``, and of process ``family`` with its descendants, which must
    be this process or one that it descends from.

    Raises `WeightsError` for a process that does not run now or is another user's.
    """
    listed = {}
    for pid in pids:
        now = status(pid)
        if now is None:
            raise WeightsError(
                f"{what} lists process {pid}, which does not run: list processes that have started already, "
                "by what get_model_info('current_pid') gives in each."
            )
        user = _user(pid)
        if user is not None and user != os.getuid():
            raise WeightsError(
                f"{what} lists process {pid}, which runs as user {user}, but only processes of this user "
                f"({os.getuid()}) can share weights with this one."
            )
        listed[pid] = now.start
    if family is None:
        return Guests(listed)
    now = status(family)
    if now is None or not (family == os.getpid() or _descends(os.getpid(), (family, now.start))):
        raise WeightsError(
            f"family must be this process ({os.getpid()}) or one that it descends from, but is {family}."
        )
    return Guests(listed, (family, now.start))


def _user(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _descends(pid: int, ancestor: tuple[int, int], strangers: set[tuple[int, int]] | None = None) -> bool:
    """Whether the process ``pid`` has the running process ``ancestor`` (id, start) above it.

    A parent that ends meanwhile hands its children to another process, and its number to whoever comes next:
    so the way up counts only if nothing of it has changed once the ancestor is reached.
    ``strangers``: processes (id, start) that are known not to descend from it; they are added to. Nobody
    becomes a descendant later: whoever adopts orphans descended from the same ones.
    """
    way: list[tuple[int, Status]] = []
    now = status(pid)
    while now is not None and len(way) < MOST_ANCESTORS:
        way.append((pid, now))
        if strangers is not None and (pid, now.start) in strangers:
            break
        if now.parent <= 0:
            break
        parent = status(now.parent)
        if parent is None or parent.start > now.start:
            return False  # one of them has ended meanwhile
        if (now.parent, parent.start) == ancestor:
            return all(was.same(status(one)) for one, was in way)
        pid, now = now.parent, parent
    if strangers is not None and now is not None:
        if len(strangers) > _MOST_STRANGERS:
            strangers.clear()
        strangers.update((one, was.start) for one, was in way)
    return False
