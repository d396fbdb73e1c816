"""A Ray cluster, the room in it for a job's ranks, and the actors there."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launcher.errors import LaunchError
from launcher.job.rank_table import make_rank_table
from ranks.common import sources
from sharding.common.bounds import MAX_PORT
from sharding.common.text import counted, parse_whole
from sharding.common.variables import set_for_a_while

if TYPE_CHECKING:
    from launcher.job.rank_table import RankTable

log = logging.getLogger(__name__)

_PROBE_SECONDS = 5.0
_NOTICE_SECONDS = 10.0
"""How long room may take before it is said what is waited for."""
_CHUNK = 64 << 10
"""What an actor hands over at once: Ray keeps what is larger in shared memory."""
_STORE_BYTES = 80 << 20
"""The least shared memory that a Ray node can have."""
_FOR_A_LOCAL_CLUSTER = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""It sends nothing home, and listens on the loopback address only, as it always does on other systems."""
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


class Cluster:
    """A connection to a Ray cluster: the one that this program uses already, that of an address, or one of
    this machine alone, which ends with the job."""

    def __init__(self, address: str | None, cores: int) -> None:
        """``cores``: those that a cluster of this machine has at least. Raises `LaunchError`."""
        address = address or os.environ.get(sources.RAY_ADDRESS) or "local"
        if "://" in address:
            raise LaunchError(
                f"The Ray address {address!r} is that of a Ray client, which cannot start ranks: give the "
                "HOST:PORT of the cluster's head (--ray-address), or auto on one of its nodes."
            )
        self._folder: str | None = None
        self._own = False
        self._loud: tuple[Any, Any] | None = None
        with set_for_a_while(_FOR_A_LOCAL_CLUSTER if address == "local" else {}), _handlers_kept():
            self.ray = _import_ray()
            if self.ray.is_initialized():
                return
            how: dict[str, Any] = {"address": address}
            if address == "local":
                self._folder = tempfile.mkdtemp(prefix="shardrun-ray-")
                how |= {"num_cpus": max(cores, os.cpu_count() or 1), "include_dashboard": False}
                how |= {"object_store_memory": _STORE_BYTES, "_temp_dir": self._folder}
            elif address != "auto":
                _probe(self.ray, address)
            self._own = True
            try:
                self.ray.init(**how, log_to_driver=False, configure_logging=False)
            except Exception as problem:  # of many kinds, Ray's own and others
                self.close()
                said = plain(str(problem))[:300].rstrip(".")
                if address == "local":
                    raise LaunchError(f"No local Ray cluster can be started: {said}.") from None
                raise LaunchError(
                    f"The Ray cluster at {address!r} cannot be used: {said}. If it wants a token, set "
                    "RAY_AUTH_MODE=token here too, and see that this host has the token."
                ) from None
            except BaseException:
                self.close()
                raise
            self._hush()

    def _hush(self) -> None:
        """Ray writes to this program's standard output what it thinks of a death, which we say ourselves."""
        module = sys.modules.get("ray._private.worker")
        if shown := getattr(module, "print_to_stdstream", None):
            self._loud = (module, shown)
            module.print_to_stdstream = (  # type: ignore[union-attr]
                lambda data, **_: log.debug("Ray says: %s", data)
            )

    def close(self) -> None:
        """Leaves it, if the connection is ours. Safe to call twice."""
        if self._own:
            self._own = False
            self.ray.shutdown()
        if self._loud is not None:
            module, shown = self._loud
            module.print_to_stdstream = shown
            self._loud = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def plain(text: str) -> str:
    """A text of several lines as one."""
    return " ".join(text.split())


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise LaunchError(
            "There is no Ray in this Python: install it (pip install 'shardrun[ray]'), or use another "
            "launcher."
        ) from None
    return ray


def _probe(ray: Any, address: str) -> None:
    """Raises `LaunchError` where nobody answers; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    number = parse_whole(port, 1, MAX_PORT)
    if not (colon and host) or number is None:
        raise LaunchError(
            f"The Ray address {address!r} is none: expected HOST:PORT of the cluster's head, or auto."
        )
    if host in _THIS_MACHINE:
        host = ray.util.get_node_ip_address()  # as Ray reads it
    try:
        socket.create_connection((host.strip("[]"), number), _PROBE_SECONDS).close()
    except OSError as problem:
        raise LaunchError(
            f"No Ray cluster answers at {address} ({problem.strerror or problem}): start it there "
            f"(ray start --head), or correct --ray-address or {sources.RAY_ADDRESS}."
        ) from None


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray puts its own in the place of this program's, and ends it on SIGTERM."""
    hook, handler = sys.excepthook, signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        sys.excepthook = hook
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


class Room:
    """A placement group: a bundle of cores and GPUs for each rank. ``table`` says where they are."""

    def __init__(
        self, cluster: Cluster, cores: int, gpus: int, world_size: int, table: RankTable | None
    ) -> None:
        """Waits until Ray has room. Raises `LaunchError` where the cluster never can have it."""
        self.cluster = cluster
        self._each = {"CPU": cores, **({"GPU": gpus} if gpus else {})}
        self._group: Any = None
        ray = cluster.ray
        nodes = [node for node in ray.nodes() if node["Alive"]]
        self._check(nodes, world_size)
        bundles: list[dict[str, float]] = [dict(self._each) for _ in range(world_size)]
        if table is not None:
            for device, bundle in zip(table.devices, bundles, strict=True):
                bundle[_resource_of(device.host, nodes)] = 0.001
        try:
            self._group = ray.util.placement_group(bundles, strategy="PACK")
            if not self._group.wait(_NOTICE_SECONDS):
                log.warning("waiting for Ray to have room for %d ranks; Ctrl-C gives up", world_size)
                while not self._group.wait(1):
                    pass
            found = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
            # Some of these nodes may have joined while it waited.
            names_of = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
            hosts = [names_of[found[at]] for at in range(world_size)]
        except ray.exceptions.RayError as problem:
            self.close()
            raise LaunchError(f"Ray gives no room for these ranks: {plain(str(problem))[:300]}") from None
        except BaseException:
            self.close()
            raise
        # Ranks of a host are neighbours.
        names = list(dict.fromkeys(hosts))
        order = range(world_size) if table is not None else sorted(
            range(world_size), key=lambda at: names.index(hosts[at])
        )  # fmt: skip
        self._bundles = list(order)
        counts = Counter(hosts)
        self.table = table or make_rank_table([(name, counts[name]) for name in names])

    def _check(self, nodes: Sequence[Mapping[str, Any]], world_size: int) -> None:
        """Counts what the nodes could hold if nothing else ran there."""
        fits = [
            min(int(node["Resources"].get(name, 0) // count) for name, count in self._each.items())
            for node in nodes
        ]
        if sum(fits) < world_size:
            words = {"CPU": "core", "GPU": "GPU"}
            each = " and ".join(counted(count, words[name]) for name, count in self._each.items())
            raise LaunchError(
                f"The Ray cluster ({counted(len(nodes), 'node')}) has room for {counted(sum(fits), 'rank')} "
                f"of {each}, but {world_size} are to start: ask for fewer ranks, fewer threads or GPUs of "
                "each, or add nodes."
            )

    def actor(self, rank: int, command: Sequence[str]) -> Any:
        """The actor of a rank, which runs ``command``."""
        ray = self.cluster.ray
        # By value: the workers of the cluster need not find our modules.
        module = sys.modules[__name__]
        ray.cloudpickle.register_pickle_by_value(module)
        try:
            where = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=self._bundles[rank]
            )
            return (
                ray.remote(Actor)
                .options(
                    num_cpus=self._each["CPU"],
                    num_gpus=self._each.get("GPU", 0),
                    max_concurrency=4,  # it is told what to do while it waits for output
                    scheduling_strategy=where,
                )
                .remote(list(command))
            )
        finally:
            ray.cloudpickle.unregister_pickle_by_value(module)

    def close(self) -> None:
        """Gives it back. Safe to call twice."""
        if self._group is not None:
            with contextlib.suppress(Exception):  # the cluster is gone
                self.cluster.ray.util.remove_placement_group(self._group)
            self._group = None
        self.cluster.close()


def _resource_of(host: str, nodes: Sequence[Mapping[str, Any]]) -> str:
    """What only the node of this name or address has."""
    for node in nodes:
        if host in {node["NodeManagerAddress"], node["NodeManagerHostname"]}:
            return f"node:{node['NodeManagerAddress']}"
    there = ", ".join(sorted({node["NodeManagerAddress"] for node in nodes})[:8])
    raise LaunchError(
        f"The Ray cluster has no node {host}: it has {there}; use these, or leave the choice to Ray."
    )


class Actor:
    """What runs in a Ray worker: an agent, its input, and what comes of it, in the order in which it came.

    Ray sends the class there by its code, so it needs nothing but Python's own modules.
    """

    def __init__(self, command: list[str]) -> None:
        self._said: queue.Queue[tuple[str, bytes | int]] = queue.Queue(64)
        self._agent = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, cwd="/",
        )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        errors = threading.Thread(target=self._pass_on, args=("stderr", self._agent.stderr), daemon=True)
        errors.start()
        self._pass_on("stdout", self._agent.stdout)
        errors.join()
        self._said.put(("end", self._agent.wait()))

    def _pass_on(self, name: str, stream: Any) -> None:
        while data := os.read(stream.fileno(), _CHUNK):
            self._said.put((name, data))

    def take(self) -> list[tuple[str, bytes | int]]:
        """Blocks for what has come: parts of the agent's output, or ``end`` with its exit code."""
        found = [self._said.get()]
        size = 0
        while size < _CHUNK and found[-1][0] != "end":
            try:
                found.append(self._said.get_nowait())
            except queue.Empty:
                break
            size += len(found[-1][1]) if isinstance(found[-1][1], bytes) else 0
        return found

    def tell(self, words: bytes) -> None:
        """Writes to the agent's input, which nothing closes."""
        assert self._agent.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._agent.stdin.write(words)
            self._agent.stdin.flush()

    def hang_up(self) -> None:
        """Closes the agent's input, at which it kills its rank."""
        assert self._agent.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._agent.stdin.close()
