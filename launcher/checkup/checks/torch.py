"""torch, with Gloo and NCCL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec

from launcher.checkup.base import Asked, Check, Finding
from launcher.common.programs import ask, last_line

_ASK = """\
import torch, torch.distributed as d
nccl = ".".join(map(str, torch.cuda.nccl.version())) if d.is_nccl_available() else ""
gloo = d.is_available() and d.is_gloo_available()
print(torch.__version__, int(gloo), int(torch.cuda.is_available()), nccl)
"""
_FOR = "the Gloo and NCCL collectives, and GPUs, need it"


def _run(asked: Asked) -> Iterator[Finding]:
    if find_spec("torch") is None:
        yield Finding(
            "warn", "not installed", f"`pip install torch`, if several hosts or GPUs are used: {_FOR}"
        )
        return
    done = ask(sys.executable, "-c", _ASK, seconds=40)
    if done.returncode:
        yield Finding("fail", f"cannot be imported ({last_line(done)})", f"install it anew: {_FOR}")
        return
    number, gloo, cuda, *nccl = done.stdout.strip().splitlines()[-1].split()
    parts = [number, "Gloo" if gloo == "1" else "no Gloo"]
    parts += [f"NCCL {nccl[0]}"] if nccl else ["no NCCL"]
    parts += ["sees GPUs"] if cuda == "1" else []
    if gloo != "1":
        yield Finding("fail", ", ".join(parts), "install a build of torch with Gloo")
    else:
        yield Finding("ok", ", ".join(parts))


CHECK = Check("torch", 4, _run)
