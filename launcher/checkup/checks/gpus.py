"""GPUs and NPUs, and how GPUs are linked."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator

from launcher.checkup.base import Asked, Check, Finding
from launcher.common.devices_here import MAP, NPUS, listed_npus
from launcher.common.programs import SilentError, ask, last_line
from sharding.common.text import counted

_QUERY = ("--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits")
_LINK = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS")
_MANAGED = "a driver that hangs or fails needs its owner: see `dmesg`, and restart the machine if it says so"


def _run(asked: Asked) -> Iterator[Finding]:
    try:
        done = ask("nvidia-smi", *_QUERY)
    except FileNotFoundError:
        if os.path.exists("/dev/nvidiactl"):  # noqa: PTH110 - a device
            yield Finding("warn", "a driver of NVIDIA's, but no nvidia-smi", "put nvidia-smi on PATH")
        done = None
    except SilentError as error:
        yield Finding("fail", str(error), _MANAGED)
        return
    if done is not None:
        yield from _cards(done.returncode, done.stdout, last_line(done))
    try:
        npus = ask(*NPUS)
        count = len(listed_npus(npus.stdout, lambda: ask(*MAP).stdout))
    except FileNotFoundError:
        npus = None
    except SilentError as error:
        yield Finding("fail", str(error), _MANAGED)
        return
    if npus is not None:
        level = "ok" if npus.returncode == 0 and count else "fail"
        yield Finding("ok" if level == "ok" else "fail", f"{counted(count, 'Ascend NPU')}",
                      "" if level == "ok" else f"npu-smi says: {last_line(npus)}")  # fmt: skip
    if done is None and npus is None:
        yield Finding("ok", "none; ranks compute on the CPU")


def _cards(code: int, text: str, said: str) -> Iterator[Finding]:
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines() if line.count(",") >= 2]
    if code or not rows:
        yield Finding("fail", f"nvidia-smi fails ({said})", _MANAGED)
        return
    kinds = Counter(f"{name} ({total} MiB)" for name, total, *_ in rows)
    yield Finding("ok", ", ".join(f"{count} x {kind}" for kind, count in kinds.items()))
    busy = [place for place, row in enumerate(rows) if row[2].isdecimal() and int(row[2]) > 1024]
    if busy:
        numbers = ", ".join(map(str, busy))
        yield Finding("warn", f"in use: {numbers}", "somebody else may compute there: see `nvidia-smi`")
    if len(rows) > 1:
        yield from _links(len(rows))


def _links(count: int) -> Iterator[Finding]:
    """How the GPUs are linked: the slowest kind of link decides."""
    try:
        done = ask("nvidia-smi", "topo", "-m")
    except OSError as error:
        yield Finding("warn", f"links unknown ({error})", "ranks run, maybe over slower links than there are")
        return
    kinds: Counter[str] = Counter()
    for line in done.stdout.splitlines():
        cells = re.sub(r"\x1b\[[0-9;]*m", "", line).split()
        if cells and re.fullmatch(r"GPU\d+", cells[0]) and len(cells) > count:  # the title's row fits too
            kinds.update(cell for cell in cells[1 : count + 1] if _LINK.fullmatch(cell))
    shown = ", ".join(f"{kind} ({number // 2})" for kind, number in kinds.most_common())
    far = [kind for kind in kinds if kind in {"SYS", "NODE"}]
    if far and not any(kind.startswith("NV") for kind in kinds):
        yield Finding("warn", f"links: {shown}", "keep ranks that talk much on GPUs of one NUMA node")
    elif kinds:
        yield Finding("ok", f"links: {shown}")


CHECK = Check("GPUs, NPUs", 5, _run)
