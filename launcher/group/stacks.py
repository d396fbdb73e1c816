"""Where a rank that hangs is in its code: Python's stacks and, by py-spy where that is installed, native
ones. Of ranks of this host only; the rank is ended after that."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ranks.common.processes import is_stopped
from ranks.talk.stacks import SIGNAL

if TYPE_CHECKING:
    from launcher.group.control import Peer

_WRITE_SECONDS, _NAP = 1.0, 0.02
_SPY_SECONDS = 10.0
_MOST_BYTES = 64 << 10
_MOST_LINES, _MOST_RANKS = 60, 2


def of(peer: Peer) -> str:
    """The stacks, as the end of an error; "" where they cannot be had."""
    if peer.process is None:
        return ""
    text = _by_spy(peer.pid) or _by_itself(peer)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    more = [f"... {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
    return f"\nStacks of rank {peer.rank}:\n" + "\n".join(
        f"  {line}" for line in [*lines[:_MOST_LINES], *more]
    )


def of_late(peers: Iterable[Peer], told: Collection[int], error: Mapping[str, object]) -> str:
    """Where ranks waited for others in vain: the stacks of some that have not ``told`` of any trouble."""
    if error.get("type") != "CollectiveTimeoutError":
        return ""
    late = [peer for peer in peers if peer.rank not in told]
    return "".join(map(of, late[:_MOST_RANKS]))


def _by_spy(pid: int) -> str:
    program = shutil.which("py-spy")
    if program is None:
        return ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [program, "dump", "--native", "--nonblocking", "--pid", str(pid)], capture_output=True, text=True,
            errors="replace", stdin=subprocess.DEVNULL, timeout=_SPY_SECONDS, check=False,
        )  # fmt: skip
        return done.stdout if done.returncode == 0 else ""
    return ""


def _by_itself(peer: Peer) -> str:
    if peer.stacks < 0 or peer.process is None:
        return ""
    place = Path(f"/proc/{peer.pid}/fd/{peer.stacks}")
    try:
        if "shardrun-stacks" not in str(place.readlink()):
            return ""
        signal.pidfd_send_signal(peer.process, SIGNAL)
        if is_stopped(peer.pid):  # it writes where it was stopped before it does anything else
            signal.pidfd_send_signal(peer.process, signal.SIGCONT)
        deadline, said = time.monotonic() + _WRITE_SECONDS, ""
        while time.monotonic() < deadline:
            time.sleep(_NAP)
            with place.open("rb") as written:
                before, said = said, written.read(_MOST_BYTES).decode(errors="replace")
            if said and said == before:
                break
        return said
    except OSError:
        return ""
