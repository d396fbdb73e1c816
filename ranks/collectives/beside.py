"""What the process beside a rank does that has not joined yet: see `ranks.collectives.absence`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
import time

from ranks.collectives.absence import END, gone_text, rank_of
from ranks.identity.place import Identity

LINGER_SECONDS, SHORTLY = 300.0, 3.0
"""For so long the end is told to ranks that come later than it, while what started this one is there; and
without such: another job may take the place of this one."""
_AFTER = 8.0  # seconds: Slurm's process on a host ends with the last task there
_LONGEST = 1 << 16


def main() -> None:
    """What the process does, until the rank has joined or its end is told."""
    process, *launcher = map(int, sys.argv[1:])
    for watched in launcher:
        threading.Thread(target=_end_with, args=(watched,), daemon=True).start()
    poll, said = select.poll(), b""
    poll.register(process, select.POLLIN)
    poll.register(0, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if 0 in ready:
            data = os.read(0, _LONGEST)
            said += data
            if not data:
                poll.unregister(0)
            if data and END not in said.splitlines():
                continue  # all that it has said counts, also where it has ended by now
        if process in ready or END in said.splitlines():
            break
    with contextlib.suppress(Exception):  # nobody would hear of it
        _tell(said, LINGER_SECONDS if launcher else SHORTLY)


def _end_with(launcher: int) -> None:
    poll = select.poll()
    poll.register(launcher, select.POLLIN)
    poll.poll()
    time.sleep(_AFTER)
    os._exit(0)


def _tell(said: bytes, seconds: float) -> None:
    first, *heard = [line for line in said.decode().splitlines() if line.encode() != END]
    identity = Identity(**json.loads(first))
    news = json.loads(heard[0]) if heard else {}
    gone: str = news.get("gone", gone_text(identity.rank, identity.host))
    late = set(range(identity.world_size)) - {identity.rank, rank_of(gone), *news.get("told", ())}
    if identity.shares_host:
        from ranks.collectives.meeting import tell_gone

        tell_gone(identity, gone, late, seconds)
    else:
        from ranks.collectives.torch.store import tell_gone as tell_in_store

        tell_in_store(identity, gone, late, seconds)
