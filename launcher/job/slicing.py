"""The options of slicing as flags and job files give them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError
from sharding.common.bounds import MAX_LENGTH
from sharding.common.nearby import hint, shown
from sharding.common.text import counted
from sharding.demands.options import SliceOptions
from sharding.slices.mesh import Mesh, parse_mesh

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"([0-9]{1,18})(\.[0-9]{1,9})? ?([A-Za-z]{0,3})", re.ASCII)
FLAGS = {
    "allow_replicated": "--allow-replicated",
    "strategy": "--strategy",
    "mesh": "--mesh",
    "micro_batches": "--micro-batches",
    "memory": "--memory",
    "profile": "--profile",
    "steer": "--steer",
    "plan": "--plan",
    "ignore_annotations": "--ignore-annotations",
}
"""Option -> its flag. A job file's keys are the options' names."""
FILES = {"profile": "profile of ONNX Runtime", "steer": "steering file", "plan": "saved plan"}
"""Options that name a file, and what it is."""


def parse_bytes(text: str) -> int:
    """A number of bytes from text such as ``24GB`` or ``512 MiB``; raises `ConfigError`."""
    found = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(found[3].upper()) if found else None
    size = int(float(found[1] + (found[2] or "")) * factor) if found and factor else 0
    if not 1 <= size < 2**63:
        raise ConfigError(f"expected bytes such as 24GB or 512MiB, above 0, found {text[:40]!r}")
    return size


def parse_mesh_text(text: str) -> Mesh:
    """A mesh from text such as ``data=2,tensor=4``; raises `ConfigError`."""
    from sharding.errors import SliceError

    try:
        return parse_mesh(text)
    except SliceError as error:
        raise ConfigError(str(error)) from None


@dataclass(frozen=True)
class Slicing:
    """What a job says of slicing; None where it says nothing."""

    allow_replicated: bool = False
    strategy: str | None = None
    mesh: Mesh | None = None
    micro_batches: int | None = None
    memory: int | None = None
    profile: Path | None = None
    steer: Path | None = None
    plan: Path | None = None
    ignore_annotations: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)
    """Of a run they are also the lengths of inputs that are made."""

    @property
    def given(self) -> list[str]:
        """The flags of the options that are given."""
        return [flag for name, flag in FLAGS.items() if getattr(self, name) not in {None, False}]

    def check(self, ranks: int | None = None, said_by: str = "--ranks") -> None:
        """Raises `ConfigError` for options that contradict each other, or this number of ranks."""
        for first, second, why in (
            ("strategy", "mesh", "a mesh says which strategies are mixed"),
            ("strategy", "plan", "the plan says it"),
            ("steer", "plan", "a plan leaves nothing to steer"),
        ):
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise ConfigError(f"{FLAGS[first]} and {FLAGS[second]} exclude each other: {why}")
        for name, what in FILES.items():
            path = getattr(self, name)
            if path is not None and not path.is_file():
                state = "not a file" if path.exists() else f"no such file{hint(path)}"
                raise ConfigError(f"{FLAGS[name]} {shown(path)}: {state}; expected a {what}")
        size = self.ranks()
        if ranks is not None and size is not None and ranks != size:
            source = f"--mesh {self.mesh}" if self.mesh else f"--plan {self.plan}"
            raise ConfigError(f"{source} is for {counted(size, 'rank')}, but {said_by} says {ranks}")

    def ranks(self) -> int | None:
        """The number of ranks that the mesh or the saved plan says."""
        if self.mesh is not None:
            return self.mesh.size
        if self.plan is not None:
            from sharding.planning.saved_plan import read_saved_plan

            return read_saved_plan(self.plan).mesh.size
        return None

    def options(self) -> SliceOptions:
        """The same for `sharding.slice_model`."""
        return SliceOptions(
            allow_replicated=self.allow_replicated,
            strategy=self.strategy or "tensor",
            mesh=self.mesh,
            micro_batches=self.micro_batches,
            memory=self.memory,
            profile=self.profile,
            steering=self.steer,
            plan=self.plan,
            annotations=not self.ignore_annotations,
            dims=self.dims,
        )


def slicing_of(values: Mapping[str, Any]) -> Slicing:
    """The options among parsed flags, or a job's; those that are absent or None were not given."""
    given = {name: values[name] for name in FLAGS if values.get(name) is not None}
    dims = values.get("dims") or {}
    return Slicing(**given, dims=dims if isinstance(dims, Mapping) else parse_dims(dims))


def parse_dims(texts: Iterable[str]) -> dict[str, int]:
    """Lengths of symbolic dimensions from ``NAME=SIZE`` texts; raises `ConfigError`."""
    dims: dict[str, int] = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        if not (
            equals
            and name
            and size.isascii()
            and size.isdigit()
            and len(size) < 11
            and int(size) <= MAX_LENGTH
        ):
            raise ConfigError(f"--dim {text}: expected NAME=SIZE with a size from 0 to {MAX_LENGTH}")
        if name in dims:
            raise ConfigError(f"--dim {text}: {name!r} is given twice")
        dims[name] = int(size)
    return dims
