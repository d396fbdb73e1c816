"""What a job says of slicing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from launcher.errors import ConfigError
from launcher.job.options import OPTIONS, SLICING, Options, grouped
from launcher.job.values import Setting, Switch
from sharding.common.text import counted
from sharding.demands.options import SliceOptions


@dataclass(frozen=True)
class Slicing:
    """The part of a job's options that says how its model is sliced."""

    said: Options

    @property
    def given(self) -> list[str]:
        """The flags of the options that are given, but of ``dims``: they are also the lengths of inputs."""
        return [option.flag for option in grouped(SLICING) if getattr(self.said, option.name)]

    def check(self, ranks: int | None = None, said_by: str = "--ranks") -> None:
        """Raises `ConfigError` for options that contradict each other, or this number of ranks."""
        self.said.check_exclusive()
        for option in grouped(SLICING):
            if option.file:
                self.said.check_file(option, f"{option.flag} ")
        size = self.ranks()
        if ranks is not None and size is not None and ranks != size:
            source = f"--mesh {self.said.mesh}" if self.said.mesh else f"--plan {self.said.plan}"
            raise ConfigError(f"{source} is for {counted(size, 'rank')}, but {said_by} says {ranks}")

    def ranks(self) -> int | None:
        """The number of ranks that the mesh or the saved plan says."""
        if self.said.mesh is not None:
            return self.said.mesh.size
        if self.said.plan is not None:
            from sharding.planning.saved_plan import read_saved_plan

            return read_saved_plan(self.said.plan).mesh.size
        return None

    def options(self) -> SliceOptions:
        """The same for `sharding.slice_model`."""
        defaults = {item.name: item.default for item in fields(SliceOptions)}
        asked: dict[str, Setting] = {}
        for option in OPTIONS.values():
            value = getattr(self.said, option.name)
            if option.slices and value:
                asked[option.slices] = (
                    not defaults[option.slices] if isinstance(option.kind, Switch) else value
                )
        return SliceOptions(**asked)


def slicing_of(flags: Mapping[str, object]) -> Slicing:
    """What parsed flags say of slicing; those that are absent or None were not given."""
    return Slicing(Options().with_flags(flags))
