"""What a slicing does: who holds what, which collectives run, what stays whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharding.emit import Collective, emit_rank
from sharding.errors import SliceError
from sharding.fold import SMALL_ELEMENTS
from sharding.options import SliceOptions
from sharding.pins import pin
from sharding.placement import REPLICATED, Placement, Split
from sharding.read import Source, read_model
from sharding.reshard import COLLECTIVES, DOMAIN
from sharding.solve import counted_weights, solve
from sharding.steps import Step, steps
from sharding.tensors import WeightTensor, dtype_name
from sharding.text import counted, human_bytes
from sharding.values import shape_of

MAX_RANKS = 4096


@dataclass(frozen=True)
class Plan:
    """How a model is sliced for a world size. The fields to show are `weights`, `collectives` and `whole`."""

    source: Source
    world_size: int
    steps: Sequence[Step]
    choices: Sequence[int]
    """The number of the chosen option of each step."""
    held: dict[str, tuple[Placement, ...]]
    """Every constant in use and how it is held; more than one placement where uses differ."""
    collectives: tuple[Collective, ...]
    """Of one inference, in order."""
    whole: dict[str, int]
    """Operator name -> nodes that compute with a weight worth splitting and hold it whole."""
    whole_weights: tuple[str, ...]
    """The names of those weights."""

    @property
    def weights(self) -> dict[str, tuple[Placement, ...]]:
        """How the weights are held: of the constants, those that are neither scalars nor shape arithmetic."""
        return {name: held for name, held in self.held.items() if _is_weight(self.source.weights[name])}

    @property
    def split_weights(self) -> list[str]:
        """Names of the weights of which each rank holds a part only."""
        return [name for name, held in self.weights.items() if REPLICATED not in held]

    def rank_weight_bytes(self) -> int:
        """Bytes of weights that each rank holds (the same for every rank, for parts are equal)."""
        return sum(self._held_bytes(name) for name in self.held)

    def split_share(self) -> float:
        """The part of the split weights' bytes that one rank holds; 1/world size unless held twice."""
        names = self.split_weights
        total = sum(self.source.weights[name].nbytes for name in names)
        return sum(self._held_bytes(name) for name in names) / total if total else 1.0

    def _held_bytes(self, name: str) -> int:
        size = self.source.weights[name].nbytes
        parts = [size // self.world_size if isinstance(where, Split) else size for where in self.held[name]]
        return sum(parts)

    def collective_counts(self) -> dict[str, int]:
        """Operator -> collectives of this kind in one inference."""
        return dict(Counter(item.op for item in self.collectives))

    def rows(self) -> list[tuple[str, str]]:
        """What the command shows, as (what, value)."""
        total = sum(self.source.weights[name].nbytes for name in self.held)
        split = sum(self.source.weights[name].nbytes for name in self.split_weights)
        counts = self.collective_counts()
        rows = [
            ("ranks", str(self.world_size)),
            ("weights", f"{len(self.weights)} of {human_bytes(total)}"),
            (
                "split weights",
                f"{len(self.split_weights)} of {human_bytes(split)} ({_percent(split, total)})",
            ),
            (
                "each rank holds",
                f"{human_bytes(self.rank_weight_bytes())} ({_percent(self.rank_weight_bytes(), total)})",
            ),
            *(
                [("share of split weights", f"{100 * self.split_share():.1f} %")]
                if self.split_weights
                else []
            ),
            ("collectives", ", ".join(f"{count} {op}" for op, count in sorted(counts.items())) or "none"),
        ]
        if self.whole:
            rows.append(
                ("whole operators", ", ".join(f"{count} {op}" for op, count in sorted(self.whole.items())))
            )
        if self.whole_weights:
            rows.append(("whole weights", _listed(self.whole_weights)))
        return rows

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        return {
            "source": self.source.file.file,
            "world_size": self.world_size,
            "rank_weight_bytes": self.rank_weight_bytes(),
            "split_share": self.split_share(),
            "weights": {
                name: {
                    "placement": [str(placement) for placement in held],
                    "dtype": self.source.weights[name].dtype,
                    "shape": list(self.source.weights[name].shape),
                    "bytes": self.source.weights[name].nbytes,
                }
                for name, held in self.weights.items()
            },
            "collectives": [
                {"op": item.op, "tensor": item.tensor, "dtype": item.dtype, "shape": list(item.shape)}
                for item in self.collectives
            ],
            "whole": self.whole,
            "whole_weights": list(self.whole_weights),
        }


def plan_model(
    model: str | Path, ranks: int, *, options: SliceOptions | None = None, allow_replicated: bool = False
) -> Plan:
    """Plans how to slice an ONNX file for a number of ranks; writes nothing.

    ``allow_replicated`` is a short form of the option of that name. Raises `ModelError` for a file that
    cannot be read, and `SliceError` for an impossible number of ranks or, unless replication is allowed,
    where no weight can be split.
    """
    options = options or SliceOptions()
    allow_replicated = allow_replicated or options.allow_replicated
    if not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= MAX_RANKS:
        raise SliceError(
            f"The number of ranks must be a whole number from 1 to {MAX_RANKS}, but is {ranks!r}."
        )
    source = read_model(model)
    _refuse_sliced(source)
    graph = steps(source, ranks)
    choices = solve(source, graph, ranks, pin(source, graph, options))
    plan = _describe(source, graph, choices, ranks)
    if ranks > 1 and not allow_replicated and not _splits_something(plan):
        raise SliceError(_nothing_splits(plan))
    return plan


def _refuse_sliced(source: Source) -> None:
    for node in source.model.graph:
        if node.domain == DOMAIN and node.op_type in COLLECTIVES:
            raise SliceError(
                f"{source.path} holds the collective {node.op_type} ({node.name!r}): it is one rank's part "
                f"already; slice the whole model instead."
            )


def _splits_something(plan: Plan) -> bool:
    return any(isinstance(where, Split) for name in plan.split_weights for where in plan.weights[name])


def _describe(source: Source, graph: list[Step], choices: list[int], world: int) -> Plan:
    first = emit_rank(source, graph, choices, 0, world)
    held: dict[str, list[Placement]] = {}
    for part in first.weights:
        held.setdefault(part.source, []).append(part.placement)
    counted = counted_weights(source)
    whole: Counter[str] = Counter()
    for step, choice in zip(graph, choices, strict=True):
        placed = zip(step.inputs, step.options[choice].inputs, strict=True)
        if any(
            value is not None and value.is_initializer() and value.name in counted and where == REPLICATED
            for value, where in placed
        ):
            whole[step.node.op_type] += 1
    names = [name for name, where in held.items() if name in counted and REPLICATED in where]
    if world == 1:
        whole, names = Counter(), []
    constants = {name: tuple(where) for name, where in held.items()}
    return Plan(source, world, graph, choices, constants, tuple(first.collectives), dict(whole), tuple(names))


def _nothing_splits(plan: Plan) -> str:
    source, ranks = plan.source, plan.world_size
    names = plan.whole_weights or tuple(plan.weights)
    if not names:
        return f"{source.path} has no weights, so there is nothing to split over {ranks} ranks."
    largest: WeightTensor = max((source.weights[name] for name in names), key=lambda weight: weight.nbytes)
    what = f"the largest, {largest.name!r}, is {largest.dtype} {list(largest.shape)}"
    if any(size > 1 and size % ranks == 0 for size in largest.shape):
        # The number of ranks is not the reason.
        if plan.whole:
            why = (
                f"the operators that use them ({', '.join(sorted(plan.whole))}) cannot work on a part; {what}"
            )
        else:
            why = f"all of them are vectors, or too small to be worth a collective; {what}"
        advice = "let every rank hold the whole model"
    else:
        why = f"used by {', '.join(sorted(plan.whole)) or 'operators without large weights'}; {what}"
        advice = "choose a number of ranks that divides its axes, or let every rank hold the whole model"
    return (
        f"{source.path}: no weight can be split over {counted(ranks, 'rank')} ({why}): {advice} "
        "with --allow-replicated (in Python: allow_replicated=True)."
    )


def model_tensors(values: Sequence[Any]) -> list[tuple[str, str, tuple[int | str | None, ...]]]:
    """Name, element type and shape of model inputs or outputs."""
    return [(value.name or "", dtype_name(value.dtype), shape_of(value) or ()) for value in values]


def _is_weight(weight: WeightTensor) -> bool:
    small = weight.tensor.size <= SMALL_ELEMENTS
    return weight.tensor.size > 1 and not weight.is_text and not (small and weight.is_integer)


def _percent(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %" if total else "0 %"


def _listed(names: Sequence[str], limit: int = 4) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
