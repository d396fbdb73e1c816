"""One copy of a model's weights for several processes: the owner's model, and those attached to it.

The copy is the prepared weights in the store (`ranks.weights.prepared.store`), whose files every process
maps. What passes between the processes is who may use them, and whether what they are for is the same in
both.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ranks.common.descriptors import Part, close_all
from ranks.devices.providers import CPU, CUDA
from ranks.errors import IdentityError, ModelError, WeightsError
from ranks.weights.shared import options, peers
from ranks.weights.shared.handle import address, new_handle
from ranks.weights.shared.protocol import step
from ranks.weights.shared.request import Attach, Share
from sharding.common.text import one_line

if TYPE_CHECKING:
    from ranks.identity.place import Identity
    from ranks.weights.device.on_device import OwnedOnDevice
    from ranks.weights.prepared.store import Store
    from ranks.weights.shared.client import Connection
    from ranks.weights.shared.owned import OwnedStore

VARIABLES = "variables"
"""The part with the variable weights."""


@dataclass(frozen=True)
class Use:
    """What the weights are for: the same in the owner and in every process that attaches."""

    path: Path
    """The model, a slice folder, or a pattern of rank models."""
    device: str
    """In words, like "the CPU"."""
    provider: str
    """ONNX Runtime's name of what it runs on."""
    member: Identity | None = None
    """Which rank this process is, where the model is one that a group of ranks runs together."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values of the options in `ranks.weights.shared.options.OPTIONS`."""


class SharedWeights:
    """Held by a model as long as it shares its weights or is attached; let go of, it ends."""

    def __init__(self, given: int | str, end: Callable[[], None], close: Callable[[], None]) -> None:
        """``end`` ends it from anywhere, a finalizer too; ``close`` does and waits until it has ended."""
        self.given = given
        self._close = close
        self._finalizer = weakref.finalize(self, end)

    def close(self) -> None:
        """Ends it. Safe to call twice."""
        if self._finalizer.detach() is not None:
            self._close()


Loaded = TypeVar("Loaded")
"""A loaded model; what it has of variable weights is its ``weights``, if that is there."""


def share(request: Share, use: Use, load: Callable[[Store], Loaded]) -> tuple[Loaded, SharedWeights]:
    """The model, loaded by ``load`` over a store, and shared with those whom ``request`` names.

    Raises `WeightsError` where weights cannot be shared here, and what ``load`` raises.
    """
    from ranks.weights.shared.server import Offer, Server

    _check_system()
    guests = peers.guests(request.pids, request.what, request.family)
    store = _owned(use)
    where = address(request.name if request.name is not None else new_handle())
    facts = _facts(use)
    # The address is taken before the model is loaded: who has the name waits, and a name taken twice is
    # noticed at once.
    server = Server(where, guests)
    kept = contextlib.ExitStack()
    try:
        step("listening")
        model = load(store)
        step("built")
        kept.enter_context(store.keep())
        server.serve(
            Offer(
                facts,
                os.open(store.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC),
                {**store.parts(), **_parts(model)},
            )
        )
        step("serving")
    except BaseException:
        server.close()
        kept.close()
        raise
    pid = os.getpid()

    def end(wait: bool = False) -> None:
        server.close(wait)
        if os.getpid() == pid:  # a forked child has no part in it
            kept.close()

    return model, SharedWeights(where.given, end, lambda: end(True))


def attach(request: Attach, use: Use, load: Callable[[Store], Loaded]) -> tuple[Loaded, SharedWeights]:
    """The model, loaded by ``load`` over the weights of the owner that ``request`` names.

    Raises `WeightsError` where there is no such owner, it refuses this process, or its weights are for
    something else; and what ``load`` raises.
    """
    from ranks.common.settings import default_timeout
    from ranks.weights.shared import client

    _check_system()
    facts = _facts(use)
    seconds = default_timeout() if request.timeout is None else request.timeout
    where = address(request.given)
    connection = client.connect(where, seconds, wait=request.wait, check=lambda pid: _check_group(pid, use))
    try:
        _check(connection, facts, use)
        model = load(_attached(use, connection))
        step("loaded")
        _take_variables(model, connection)
    except BaseException:
        close_all([number for _, numbers in connection.parts.values() for number in numbers])
        connection.close()
        raise
    return model, SharedWeights(request.given, connection.close, connection.close)


def _check_system() -> None:
    if sys.platform != "linux":
        raise WeightsError(f"processes share weights on Linux only, but this is {sys.platform}.")


def _owned(use: Use) -> OwnedStore | OwnedOnDevice:
    """Where the owner's weights lie."""
    if use.provider == CUDA:
        from ranks.cache.folder import cache_folder
        from ranks.cache.place import place_of
        from ranks.weights.device.on_device import OwnedOnDevice

        return OwnedOnDevice(place_of(cache_folder(), "device"), cache_folder())
    if use.provider != CPU:
        raise WeightsError(f"weights are shared on the CPU and with CUDA only, but not on {use.device}.")
    from ranks.weights.prepared.store import needed_store
    from ranks.weights.shared.owned import OwnedStore

    try:
        store = needed_store()
    except WeightsError as problem:
        raise WeightsError(
            f"weights cannot be shared without a store of prepared weights: {problem}"
        ) from None
    owned = OwnedStore(store.folder, store.limit, cache=store.cache)
    if use.path.is_file():  # else its ranks' models are looked at one by one
        owned.check_size(use.path, str(use.path))
    return owned


def _attached(use: Use, connection: Connection) -> Store:
    """Where an attached process finds the owner's weights."""
    if use.provider == CUDA:
        from ranks.weights.device.on_device import AttachedOnDevice

        return AttachedOnDevice(Path(f"/proc/self/fd/{connection.folder}"), connection.parts)
    from ranks.weights.shared.owned import AttachedStore

    return AttachedStore(connection.folder, connection.owner)


def _facts(use: Use) -> dict[str, str]:
    """What must be the same in owner and attached process."""
    from ranks.weights.prepared import keys

    release, _, build = keys.runtime().partition(" ")
    one = use.member
    return {
        "model": _content(use.path),
        # Processes may count GPUs differently: which one it is, the memory itself says.
        "device": "a GPU with CUDA" if use.provider == CUDA else use.device,
        "runtime": f"{release} (build {hashlib.sha256(build.encode()).hexdigest()[:8]})",
        "processor": keys.cpu_features(),
        "rank": "no rank" if one is None else f"rank {one.rank} of {one.world_size}",
        **{name: options.fact(use.options.get(name, ())) for name in options.OPTIONS},
    }


def _content(path: Path) -> str:
    """A hash of the model's content, of a slice folder or a pattern that of all its files."""
    from ranks.cache.folder import fingerprint, remembered_hash
    from ranks.models import pattern
    from sharding.slices.manifest import FILE_NAME

    try:
        if pattern.is_pattern(path):
            found = [f"{rank} {fingerprint(file)}" for rank, file in sorted(pattern.files(path).items())]
            return hashlib.sha256("\n".join(found).encode()).hexdigest()
        if path.is_dir():  # its manifest has the hashes of all files
            return remembered_hash(path / FILE_NAME)
        return fingerprint(path)
    except OSError as error:
        raise ModelError(f"{error.filename} cannot be read: {error.strerror or error}.") from None


def _parts(model: object) -> dict[str, Callable[[], Part]]:
    """What a process is given besides the store."""
    weights = getattr(model, "weights", None)
    return {} if weights is None else {VARIABLES: weights.export}


def _take_variables(model: object, connection: Connection) -> None:
    """Lets the model follow the owner's variable weights, where it has such."""
    part = connection.parts.pop(VARIABLES, None)
    weights = getattr(model, "weights", None)
    if weights is None or part is None:
        if part is not None:
            close_all(part[1])
        return

    def fetch() -> Part:
        return connection.fetch()[VARIABLES]

    weights.attach(*part, fetch)


def _check_group(pid: int, use: Use) -> None:
    """Raises `WeightsError` where the owner is of this process's own group: it builds its part together with
    this process, which would wait for it in vain."""
    one = use.member
    if one is None or one.world_size == 1 or one.key.startswith("pmi:"):  # made from the process that asks
        return
    from ranks.identity.identity import identify

    try:
        environ = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes()).split("\0")
        other = identify(environ=dict(item.split("=", 1) for item in environ if "=" in item))
    except (OSError, IdentityError):
        return
    if other.key == one.key:
        raise WeightsError(
            f"process {pid}, which shares the weights, is rank {other.rank} of the group of {one.world_size} "
            f"that this process is rank {one.rank} of, and ranks of one group build together: what they hold "
            "alike they share by themselves. Attach to the same rank of another group."
        )


_OTHERS = {
    "model": "{who} has another model: the hash of its content begins with {theirs:.12}, that of {path} with "
    "{own:.12}. Build the same file in both.",
    "rank": "{who} is {theirs}, but this process is {own}: give each rank the handle, or the name, of the "
    "owner that is the same rank of another group.",
    "device": "{who} runs it on {theirs}, but this process on {own}: give both the same target.",
    "runtime": "{who} has ONNX Runtime {theirs}, but this process has {own}, and weights prepared by one "
    "release do not fit another: use the same in both.",
    "processor": "{who} prepared them for another processor than this process sees.",
}
"""What is said where a fact of the owner is not this process's; in this order."""


def _check(connection: Connection, facts: Mapping[str, str], use: Use) -> None:
    """Raises `WeightsError` where the owner's weights are for something else."""
    theirs = {key: one_line(str(connection.facts.get(key))[:200]) for key in facts}
    who = f"process {connection.owner}, which shares the weights,"
    for fact, sentence in _OTHERS.items():
        if theirs[fact] != facts[fact]:
            raise WeightsError(sentence.format(who=who, theirs=theirs[fact], own=facts[fact], path=use.path))
    different = options.difference(connection.facts, facts)
    if different is not None:
        # Refused even where the store has these weights by chance: an owner's updates would go unnoticed.
        raise WeightsError(f"{who} {different}")
