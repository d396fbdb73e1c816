"""What the process beside a rank tells, once that has ended without joining: `ranks.collectives.absence`."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence

from ranks.collectives.absence import gone_text, rank_of
from ranks.identity.place import Identity

_SECONDS = 30.0


def tell(said: Sequence[bytes]) -> None:
    """Tells it to those who wait; ``said`` are the lines that the rank has said to this process."""
    with contextlib.suppress(Exception):  # nobody would hear of it
        _tell(said)


def _tell(said: Sequence[bytes]) -> None:
    first, *heard = map(json.loads, said)
    identity = Identity(**first["identity"])
    gone: str = next((news["gone"] for news in heard if "gone" in news), "")
    gone = gone or gone_text(identity.rank, identity.host)
    told = {rank for news in heard for rank in news["told"]}
    if first["step"]:
        _end_step(first["step"], gone)
        return
    late = set(range(identity.world_size)) - {identity.rank, rank_of(gone), *told}
    if identity.shares_host:
        from ranks.collectives.meeting import tell_gone

        tell_gone(identity, gone, late, first["seconds"])
    else:
        from ranks.collectives.torch.store import tell_gone as tell_in_store

        tell_in_store(identity, gone, late, first["seconds"])


def _end_step(step: str, gone: str) -> None:
    """Ends a step of Slurm, as `srun -K` would, and says why."""
    ends = shutil.which("scancel")
    how = "is ended" if ends else f"is to be ended (scancel {step}; srun -K does so by itself)"
    print(
        f"shardrun: error: {gone} Step {step} of Slurm {how}: MPI waits for it.", file=sys.stderr, flush=True
    )
    if ends:
        subprocess.run([ends, "--signal=KILL", step], stdin=subprocess.DEVNULL, timeout=_SECONDS, check=False)
