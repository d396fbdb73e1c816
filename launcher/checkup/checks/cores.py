"""Cores, their NUMA nodes, and the share of them that the cgroup gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from launcher.checkup.base import Asked, Check, Finding
from sharding.common.limits import cores, cpu_quota, processors
from sharding.common.text import counted


def _run(asked: Asked) -> Iterator[Finding]:
    machine, seen, quota = os.cpu_count() or 1, len(os.sched_getaffinity(0)), cpu_quota()
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1
    found = f"{counted(cores(), 'core')} ({counted(processors(), 'thread')}), {counted(nodes, 'NUMA node')}"
    held = []
    if seen < machine:
        held.append(f"{seen} of the machine's {machine} processors are this process's")
    if quota is not None and quota < seen:
        owner = "processor's" if quota == 1 else "processors'"
        held.append(f"the cgroup's quota is {quota:g} {owner} time")
    if held:
        advice = "ask for more with the job or container, or give each rank fewer --threads"
        yield Finding("warn", f"{found}; {'; '.join(held)}", advice)
    else:
        yield Finding("ok", found)
    if quota is not None and quota < 1:
        yield Finding("fail", f"less than one processor ({quota:g})", "raise the quota: ranks wait for it")


CHECK = Check("cores", 6, _run)
