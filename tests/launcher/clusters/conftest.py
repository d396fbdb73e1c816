"""Two hosts and Slurm on them, for all tests here; without root and the programs they are skipped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import clusters
from tests.launcher import slices
from tests.launcher.cli_tools import environment
from tests.launcher.processes import wait_until

SECONDS = 120
FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Keeps whether a test has failed."""
    made: Any = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or made.get_result().failed


@pytest.fixture(autouse=True)
def _jobs_of_a_test_that_fails_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """Else its ranks would compute for ever, and all tests after it would wait for its nodes."""
    yield
    if request.node.stash.get(FAILED, False) and "slurm" in request.fixturenames:
        slurm = request.getfixturevalue("slurm").slurm
        slurm.cancel()
        slurm.idle()


class Cluster:
    """The hosts with a slice folder for two ranks on both; programs are run on the first."""

    def __init__(self, hosts: clusters.Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder
        self.slices = slices.make_slices(folder / "slices")
        self.slurm: clusters.Slurm | None = None

    def run(
        self, *words: object, before: Sequence[object] = (), **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """``shardrun WORDS`` to its end, which leaves no process on either host."""
        return self.python("-m", "launcher.cli", *words, before=before, **environ)

    def python(
        self, *words: object, before: Sequence[object] = (), **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """The same of any Python program; ``before``: words before it, such as salloc's."""
        slurm = self.slurm.environment if self.slurm is not None else {}
        more = {"SHARDRUN_CACHE": str(self.folder / "cache"), **slurm, **environ}
        command = self.hosts.command(clusters.NAMES[0], [*before, sys.executable, *words], **more)
        done = subprocess.run(
            command, cwd=self.folder, env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=SECONDS, check=False,
        )  # fmt: skip
        assert wait_until(lambda: not self.ranks(), 10), (self.ranks(), done.stderr)
        return done

    def ranks(self, host: str = "") -> dict[int, str]:
        """The ranks that run on the hosts, or on one of them, by their numbers on this machine."""
        found = {}
        for name in [host] if host else clusters.NAMES:
            for pid in self.hosts.processes(name):
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
                # As soon as they have said hello; not what starts them, whose command line names the program.
                if words.startswith("shardrun rank "):
                    found[pid] = words
        return found


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two hosts."""
    if reason := clusters.missing():
        pytest.skip(reason)
    with clusters.hosts(tmp_path_factory.mktemp("hosts") / "made") as hosts:
        yield Cluster(hosts, tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="session")
def slurm(cluster: Cluster) -> Cluster:
    """The same with Slurm."""
    if reason := clusters.missing(slurm=True):
        pytest.skip(reason)
    if cluster.slurm is None:
        cluster.slurm = clusters.Slurm(cluster.hosts)
    return cluster
