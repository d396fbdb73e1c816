"""Ranks in pods that run already, through ``kubectl exec``: one connection a pod, and no MPI.

It is for a pod of the same cluster, such as the first of a StatefulSet: ranks connect to the launcher, and
pods reach one another, but seldom a workstation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.errors import ConfigError, LaunchError
from launcher.starters.base import Launcher, Starter

if TYPE_CHECKING:
    from launcher.job.rank_table import RankTable

_SECONDS = 30


def _make() -> Launcher:
    from launcher.job.places.hosts import is_here
    from launcher.starters.ssh import SshLauncher

    class KubernetesLauncher(SshLauncher):
        """As the ssh launcher, with kubectl in the place of ssh."""

        name = "kubernetes"
        over_ssh = False

        def __init__(self) -> None:
            self._pods: dict[str, str] = {}

        def check(self, table: RankTable | None) -> None:
            """Raises `LaunchError` for hosts that are no running pods."""
            if table is None:
                raise ConfigError(
                    "--launcher kubernetes: say in which pods the ranks run, by the names under which pods "
                    "find one another, with --hosts web-0.web:1,web-1.web:1 or --rank-table"
                )
            far = [host for host in table.hosts if not is_here(host)]
            self._pods = {host: self._pods[host] for host in far if host in self._pods}
            if any(host not in self._pods for host in far):
                self._pods = _pods(far)

        def place(self, world_size: int, table: RankTable | None) -> RankTable | None:
            """Looks for the pods, also for what is copied there before ranks start."""
            self.check(table)
            return table

        def _far(self, host: str, words: list[str]) -> list[str]:
            return [_kubectl(), "exec", "-i", self._pods[host], "--", *words]

    return KubernetesLauncher()


def _kubectl() -> str:
    import shutil

    found = shutil.which("kubectl")
    if found is None:
        raise LaunchError(
            "There is no kubectl on PATH, by which to reach the pods: put it into the image, or use another "
            "launcher."
        )
    return found


def _pods(hosts: list[str]) -> dict[str, str]:
    """The names of the running pods behind hosts: a pod of a Job has another name than its host."""
    import json
    import subprocess

    program = _kubectl()
    try:
        done = subprocess.run(
            [program, "get", "pods", "-o", "json"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise LaunchError(f"kubectl does not answer ({problem}): see that it works here.") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise LaunchError(
            f"kubectl cannot list the pods ({said[:300]}): this pod's service account must be allowed to get "
            "and list pods, and to create pods/exec."
        )
    try:
        items: list[dict[str, dict[str, str]]] = json.loads(done.stdout)["items"]
        known: dict[str, str] = {}
        domains: dict[str, list[str | None]] = {}
        for item in items:
            name, state = item["metadata"]["name"], item["status"]
            if state.get("phase") == "Running":
                known |= dict.fromkeys(
                    [name, item["spec"].get("hostname") or name, state.get("podIP") or name], name
                )
                domains[name] = [item["spec"].get("subdomain"), item["metadata"].get("namespace")]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise LaunchError("kubectl lists no pods that can be read: see `kubectl get pods -o json`.") from None
    found = {host: known.get(host) or _by_domain(host, known, domains) for host in hosts}
    if lacking := [host for host, pod in found.items() if pod is None]:
        there = ", ".join(sorted(set(known.values()))[:8]) or "none"
        raise LaunchError(f"No running pod is {lacking[0]}; there are: {there}. Correct --hosts.")
    return {host: pod for host, pod in found.items() if pod is not None}


def _by_domain(
    host: str, known: Mapping[str, str], domains: Mapping[str, Sequence[str | None]]
) -> str | None:
    """The pod of POD.SERVICE.NAMESPACE...: one of another service or namespace may have the same name."""
    first, *rest = host.split(".")
    pod = known.get(first)
    fits = pod is not None and all(own in {None, said} for own, said in zip(domains[pod], rest, strict=False))
    return pod if fits else None


STARTER = Starter(_make, meaning="kubectl exec into pods that run already, from one of them")
