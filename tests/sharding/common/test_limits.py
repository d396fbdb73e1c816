"""Processors and memory that cgroups and own limits leave, read from files of a made-up system."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sharding import slice_model
from sharding.common import limits
from sharding.writing import stream
from tests.sharding.graphs import mlp

V1 = "31 23 0:26 {mounted} /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
V1_MEMORY = "32 23 0:27 {mounted} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V2 = "29 22 0:25 {mounted} /sys/fs/cgroup rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = "30 23 0:24 {mounted} /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"


def system(root: Path, mounts: str, cgroup: str, files: Mapping[str, str], mounted: str = "/") -> Path:
    written = {
        "proc/self/mountinfo": "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mounts.replace("{mounted}", mounted),
        "proc/self/cgroup": cgroup,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }
    for name, text in written.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"a/b/cpu.max": "150000 100000\n"}, 1.5),
        ({"a/b/cpu.max": "max 100000\n"}, None),
        ({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 0.5),
        ({"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "200000 100000\n", "cpu.max": "max 100000"}, 2.0),
        ({"a/b/cpu.max": "20000 10000\n", "a/cpu.max": "300000 100000\n"}, 2.0),
        ({"a/b/cpu.max": "", "a/b/cgroup.procs": ""}, None),
        ({"a/b/cpu.max": "-1 0\n"}, None),
        ({"a/b/cpu.max": "100000 0\n"}, None),
        ({"a/b/cgroup.procs": ""}, None),
    ],
)
def test_version_2(tmp_path: Path, files: Mapping[str, str], quota: float | None) -> None:
    assert limits.cpu_quota(system(tmp_path, V2, "0::/a/b\n", files)) == quota


@pytest.mark.parametrize(
    ("own", "parent", "limit"),
    [("2000", "1000", 1000), ("1000", "2000", 1000), ("max", "2000", 2000), ("max", "max", None)],
)
def test_the_tightest_limit_of_memory_holds(tmp_path: Path, own: str, parent: str, limit: int | None) -> None:
    files = {"a/b/memory.max": f"{own}\n", "a/memory.max": f"{parent}\n", "memory.max": "max\n"}
    assert limits.memory_limit(system(tmp_path, V2, "0::/a/b\n", files)) == limit


@pytest.mark.parametrize(
    ("own", "parent", "quota"),
    [("150000", "-1", 1.5), ("-1", "-1", None), ("-1", "200000", 2.0), ("300000", "100000", 1.0)],
)
def test_version_1(tmp_path: Path, own: str, parent: str, quota: float | None) -> None:
    files = {
        "cpu,cpuacct/a/b/cpu.cfs_quota_us": own, "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/a/cpu.cfs_quota_us": parent, "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
        "memory/x/memory.limit_in_bytes": "1", "memory/memory.limit_in_bytes": "9223372036854771712",
    }  # fmt: skip
    root = system(tmp_path, V1 + V1_MEMORY + HYBRID, "4:memory:/\n3:cpu,cpuacct:/a/b\n0::/\n", files)
    assert limits.cpu_quota(root) == quota
    assert limits.memory_limit(root) is None


def test_a_container_sees_its_own_part_of_the_tree(tmp_path: Path) -> None:
    """What is mounted there begins at its own group, or the path is that of the host."""
    files = {"cpu.max": "100000 100000\n", "memory.max": "1000000\n"}
    for number, (cgroup, mounted) in enumerate(
        (("0::/\n", "/"), ("0::/docker/abc\n", "/docker/abc"), ("0::/../../x\n", "/"), ("0::/gone\n", "/"))
    ):
        root = system(tmp_path / str(number), V2, cgroup, files, mounted)
        assert (limits.cpu_quota(root), limits.memory_limit(root)) == (1.0, 1_000_000), cgroup


@pytest.mark.parametrize(("quota", "count"), [("50000", 1), ("100000", 1), ("190000", 1), ("299999", 3)])
def test_threads_are_counted_within_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(1000, 1016)))  # of none is a core known
    root = system(tmp_path, V2, "0::/a\n", {"a/cpu.max": f"{quota} 100000"})
    assert limits.cores(root) == limits.processors(root) == count
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1000})
    assert limits.cores(root) == limits.processors(root) == 1


def test_a_system_without_cgroups(tmp_path: Path) -> None:
    assert limits.cpu_quota(tmp_path) is None and limits.memory_limit(tmp_path) is None
    assert limits.processors(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (MemoryError(), "memory is short ("),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory is short ("),
        (RuntimeError("can't start new thread"), "memory is short ("),
        (RuntimeError("std::bad_alloc"), "memory is short ("),
        (OSError(errno.EMFILE, "Too many open files"), "`ulimit -n` allows "),
        (OSError(errno.ENFILE, "Too many open files in system"), "`ulimit -n` allows "),
        (RuntimeError("open weights.data fail, errcode = 24 - Too many open files"), "`ulimit -n` allows "),
        (OSError(errno.ENOENT, "No such file"), ""),
        (ValueError("memory"), ""),
    ],
)
def test_what_is_short(error: Exception, advice: str) -> None:
    found = limits.shortage(error)
    assert found.startswith(advice) and bool(found) == bool(advice)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        RuntimeError("pthread_create failed, error code: 11 error msg: Resource temporarily unavailable"),
    ],
    ids=["python", "fork", "native"],
)
def test_few_threads(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {resource.RLIMIT_NPROC: 2}
    original = resource.getrlimit
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (kinds.get(kind, original(kind)[0]), 0))
    assert limits.shortage(error) == (
        "threads and processes are short (`ulimit -u` allows this user 2): raise that limit"
    )
    kinds[resource.RLIMIT_NPROC] = 1 << 40
    assert "ulimit -u" not in limits.shortage(error)


def test_few_files() -> None:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        assert not limits.files_advice(1 << 40)
        return
    assert limits.files_advice(allowed) == f"`ulimit -n` allows {allowed} open files: raise that limit"
    assert not limits.files_advice(allowed - 1)


def test_writers_of_slices_are_as_many_as_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[str] = []
    known = stream.ThreadPoolExecutor

    def pool(workers: int, name: str, **more: Any) -> ThreadPoolExecutor:
        pools.append(name)
        return known(workers, name, **more)

    monkeypatch.setattr(stream, "ThreadPoolExecutor", pool)
    monkeypatch.setattr(stream, "processors", lambda: 1)  # as a quota of one leaves of any number
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1 << 16)  # little is written without threads
    slice_model(mlp(tmp_path / "model.onnx", inner=4096), 2, tmp_path / "slices")
    assert pools.count("write") == pools.count("hash") == 1
