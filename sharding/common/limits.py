"""What the system lets this process use, by its own limits and its cgroups: processors, memory, open files.

A container's share of the processors is a quota of time: the process still sees all of them, and threads for
all of them are stopped together, again and again. A cgroup never gets more than those it lies in.
"""

from __future__ import annotations

import errno
import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from sharding.common.text import human_bytes

_UNLIMITED = 1 << 60  # version 1 says so with the largest number of whole pages
_FILES = (errno.EMFILE, errno.ENFILE)
HOLD_LESS = "use more ranks, each of which holds less"
"""What helps where memory is short: stands in every advice about it, so that none is given twice."""
_NO_THREAD = "can't start new thread"
_SHORT = (
    "bad_alloc",
    "Failed to allocate",
    "Cannot allocate memory",
    "out of memory",
    _NO_THREAD,
    "failed to map segment",  # of a library
)


def cores(root: Path = Path("/")) -> int:
    """Cores that this process can keep busy; the hardware threads of one core count once, as in ONNX
    Runtime."""
    return _within(_seen(), root)


def _seen() -> int:
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    found = set()
    for cpu in os.sched_getaffinity(0):
        try:
            found.add(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            found.add(str(cpu))
    return len(found)


def share(size: int, *, bound: bool = False, root: Path = Path("/")) -> int:
    """The `cores` of one of ``size`` processes that divide them; ``bound``: this one has been given its own,
    while a quota is still that of all."""
    if not bound:
        return cores(root) // size
    quota = cpu_quota(root)
    own = _seen()
    return own if quota is None else min(own, math.floor(quota + 0.01) // size)


def processors(root: Path = Path("/")) -> int:
    """Threads of this process that can run at once, those of one core too."""
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _within(seen, root)


def _within(count: int, root: Path) -> int:
    quota = cpu_quota(root)
    return count if quota is None else max(1, min(count, math.floor(quota + 0.01)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processors' worth of time that the tightest of this process's cgroups may use; None without a quota.

    ``root``: where /proc and /sys are.
    """
    found = []
    for folder in _folders("cpu", root):
        if (text := _read(folder / "cpu.max")) is not None:  # version 2: "50000 100000", "max 100000"
            quota, _, period = text.partition(" ")
        else:
            quota, period = (_read(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
        if quota.isdecimal() and period.isdecimal() and int(period) and int(quota):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the tightest of this process's cgroups may hold; None without a limit."""
    found = []
    for folder in _folders("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (text := _read(folder / name)) and text.isdecimal() and int(text) < _UNLIMITED:
                found.append(int(text))
    return min(found, default=None)


def _folders(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's cgroup that has a controller, and of those that it lies in."""
    mounts = []
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        fields, kind = (part.split() for part in line.partition(" - ")[::2])
        if len(fields) >= 5 and len(kind) >= 3 and kind[0].startswith("cgroup"):
            mounts.append((kind[0], kind[2].split(","), fields[3], fields[4]))
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for version, options, mounted, point in mounts:
            second = version == "cgroup2" and number == "0"
            first = version == "cgroup" and controller in {*controllers.split(",")} & {*options}
            if not (first or second):
                continue
            top = root / point.lstrip("/")
            # In a container, another part of the tree may be mounted than the path names.
            inside = os.path.relpath(path, mounted)
            own = top if inside.startswith("..") or not (top / inside).is_dir() else top / inside
            yield from (one for one in (own, *own.parents) if one.is_relative_to(top))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return None


def shortage(error: BaseException) -> str:
    """What ran out, as an error says, and what helps, as the end of a sentence; "" where nothing did."""
    number = error.errno if isinstance(error, OSError) else None
    text = str(error)
    if number in _FILES or any(os.strerror(files) in text for files in _FILES):
        return files_advice()
    refused = number == errno.EAGAIN or os.strerror(errno.EAGAIN) in text or _NO_THREAD in text
    if refused and (advice := threads_advice()):
        return advice
    return memory_advice() if of_memory(error) else ""


def of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    number = error.errno if isinstance(error, OSError) else None
    return (
        isinstance(error, MemoryError) or number == errno.ENOMEM or any(word in str(error) for word in _SHORT)
    )


def files_advice(few: int | None = None) -> str:
    """How many files, pipes and sockets this process may open, and what helps; "" where they are more than
    ``few``."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if few is not None and (limit == resource.RLIM_INFINITY or limit > few):
        return ""
    return f"`ulimit -n` allows {limit} open files: raise that limit"


def threads_advice() -> str:
    """How many threads and processes there may be, and what helps; "" unless about so many are there: threads
    need memory too, and the system's answer is the same."""
    held = []
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit != resource.RLIM_INFINITY and 2 * _threads_of_user() >= limit:
        held.append(f"`ulimit -u` allows this user {limit}")
    for folder in _folders("pids", Path("/")):
        there, most = _read(folder / "pids.current") or "", _read(folder / "pids.max") or ""
        if there.isdecimal() and most.isdecimal() and 2 * int(there) >= int(most):
            held.append(f"its cgroup (container or job) allows {most}")
    return f"threads and processes are short ({', '.join(held)}): raise that limit" if held else ""


def _threads_of_user() -> int:
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == os.geteuid():
                count += len(list((process / "task").iterdir()))
        except OSError:  # gone meanwhile
            continue
    return count


def memory_advice() -> str:
    """What holds this process's memory down, and what helps, as the end of a sentence."""
    held = []
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        held.append(f"`ulimit -v` allows {human_bytes(limit)} of addresses")
    if (bytes_ := memory_limit()) is not None:
        held.append(f"its cgroup (container or job) allows {human_bytes(bytes_)}")
    if (there := free_memory()) is not None:
        held.append(f"{human_bytes(there)} are available on this host")
    known = f" ({', '.join(held)})" if held else ""
    return f"memory is short{known}: raise the limit, or {HOLD_LESS}"


def free_memory() -> int | None:
    """Bytes that can be had without swapping (``MemAvailable`` of Linux); None where that is not known."""
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) << 10
    return None
