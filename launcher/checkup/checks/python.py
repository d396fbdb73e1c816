"""Python, and this program."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator

from launcher.checkup.base import Asked, Check, Finding
from sharding.common.version import version

_FIRST, _LAST = (3, 10), (3, 12)


def _run(asked: Asked) -> Iterator[Finding]:
    found = f"{platform.python_version()} ({sys.executable}), shardrun {version()}"
    if sys.version_info[:2] < _FIRST:
        yield Finding("fail", found, "use Python 3.10, 3.11 or 3.12")
    elif sys.version_info[:2] > _LAST:
        yield Finding("warn", found, "shardrun is tried with Python 3.10, 3.11 and 3.12")
    else:
        yield Finding("ok", found)
    if sys.platform != "linux":
        yield Finding("fail", f"the system is {sys.platform}", "ranks find each other on Linux only")


CHECK = Check("Python", 1, _run)
