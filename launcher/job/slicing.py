"""What a job says of slicing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from launcher.errors import ConfigError
from launcher.job.option_table import changed
from launcher.job.options import OPTIONS, SLICING, Options, grouped
from launcher.job.values import Switch
from sharding.common.text import counted
from sharding.demands.options import SliceOptions
from sharding.slices.topology import Link, Topology

if TYPE_CHECKING:
    from launcher.job.rank_table import RankTable


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
        if self.said.link is not None and self.said.strategy not in {None, "auto"}:
            raise ConfigError(
                f"--strategy {self.said.strategy} and --link exclude each other: with a link the strategy is "
                "chosen (auto)"
            )
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

    def count(self, ranks: int | None = None) -> int | None:
        """The number of ranks: ``ranks``, or what the mesh, the plan or, with a link, the hosts say."""
        found = ranks if ranks is not None else self.ranks()
        if found is None and self.said.link is not None:
            if self.said.rank_table is not None:
                return self._table().world_size
            if (places := self.said.placement.places()) is not None:
                return places.ranks
        return found

    def _table(self) -> RankTable:
        from launcher.job.rank_table import load_rank_table

        assert self.said.rank_table is not None
        return load_rank_table(self.said.rank_table)

    def _topology(self, link: Link) -> Topology:
        """The hosts of the ranks. Raises `ConfigError` where nothing says them."""
        size = self.count(self.said.ranks)
        if self.said.rank_table is not None:
            names = [device.host for device in self._table().devices]
        elif size is not None and (nodes := self.said.nodes) is not None:
            names = [
                str(at) for at in range(nodes) for _ in range(size * at // nodes, size * (at + 1) // nodes)
            ]
        elif size is not None and (places := self.said.placement.places()) is not None:
            names = [host for host, count in places.spread(size) for _ in range(count)]
        else:
            raise ConfigError(
                "--link says how fast hosts are joined: say which hosts, with --hosts, --hostfile or "
                "--rank-table"
            )
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return Topology(tuple(numbers[name] for name in names), link)

    def options(self) -> SliceOptions:
        """The same for `sharding.slice_model`. Raises `ConfigError` for a link of no hosts."""
        defaults = {item.name: item.default for item in fields(SliceOptions)}
        asked: dict[str, object] = {}
        for option in OPTIONS.values():
            value = getattr(self.said, option.name)
            if option.slices and value:
                asked[option.slices] = (
                    not defaults[option.slices] if isinstance(option.kind, Switch) else value
                )
        if self.said.link is not None:
            asked |= {"strategy": "auto", "topology": self._topology(self.said.link)}
        return changed(SliceOptions(), asked)


def slicing_of(flags: Mapping[str, object]) -> Slicing:
    """What parsed flags say of slicing; those that are absent or None were not given."""
    return Slicing(Options().with_flags(flags))
