"""Along which axes rows are computed apart, as manifests and rank models have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sharding.slices.expressions import MARK, is_expression
from sharding.slices.manifest_fields import Field


@dataclass(frozen=True)
class BatchAxes:
    """The axes that data parallelism and micro-batches cut, by name; empty where the batch is not cut."""

    inputs: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    lengths: Mapping[str, str] = field(default_factory=dict)
    """Symbol -> the sum of others that it must be, for the batch to be cut; files may leave it out."""
    names: tuple[str, ...] = ()
    """Symbols that read as expressions of others, and may have any length; files may leave it out."""

    def to_json(self) -> dict[str, object]:
        """As manifests and rank models have it."""
        found: dict[str, object] = {"inputs": dict(self.inputs), "outputs": dict(self.outputs)}
        found |= {"lengths": dict(self.lengths)} if self.lengths else {}
        return found | ({"names": list(self.names)} if self.names else {})


def names_only(axes: Iterable[int | str | None], sums: Mapping[str, str]) -> tuple[str, ...]:
    """Those of the inputs' axes that read as expressions of others, but are none of these sums."""
    symbols = dict.fromkeys(axis for axis in axes if isinstance(axis, str))
    odd = [symbol for symbol in symbols if not symbol.isidentifier() and symbol not in sums]
    if not odd:
        return ()
    return tuple(symbol for symbol in odd if is_expression(symbol, symbols))


def read_sums(item: Field, axes: Iterable[int | str | None]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The ``lengths`` and ``names`` of `BatchAxes`; ``axes``: all those of the inputs.

    Files had no ``names`` once: what reads as an expression was taken for that when they were sliced, and
    ranks looked at it by themselves.
    """
    sums = {name: value.string() for name, value in item.get("lengths", {}).entries()}
    names = tuple(value.string() for value in item.get("names", []).items())
    if item["inputs"].mapping():
        odd = [symbol for symbol in names_only(axes, sums) if symbol not in names]
        sums |= {symbol: symbol.replace(MARK, "*") for symbol in odd}
    return sums, names
