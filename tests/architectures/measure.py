"""What slicing an architecture costs and whether the slices give the unsliced model's outputs."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from launcher.group.group import start
from sharding.demands.options import SliceOptions
from sharding.planning.plan import plan_model
from sharding.writing.write import write_slices
from tests.architectures.zoo import Model
from tests.sharding import graphs, lockstep


@dataclass(frozen=True)
class Measured:
    """One slicing of one architecture."""

    ranks: int
    strategy: str
    split_share: float
    """The part of the weight bytes of which no rank holds all."""
    rank_share: float
    """The part of the weight bytes that the rank with most of them holds."""
    planning_seconds: float
    error: float
    """The largest relative error of any output of any rank, for the example inputs that were run."""
    counts: Counter[str] = field(default_factory=Counter)
    """Operator -> collectives in one inference."""
    state: int = 0
    """Bytes of state for each further token, whole."""
    rank_state: int = 0
    """Of these, what the rank with most of them keeps."""
    sent: Counter[str] = field(default_factory=Counter)
    """Operator -> bytes that each rank puts into them, for the first example input."""
    whole: tuple[str, ...] = ()
    """Weights worth splitting that every rank holds whole."""

    def with_error(self, error: float) -> "Measured":
        """The same with another error."""
        return replace(self, error=error)

    @property
    def total(self) -> int:
        """All collectives of one inference."""
        return sum(self.counts.values())


def measure(
    model: Model, ranks: int, scratch: Path, strategy: str = "tensor", *, examples: int = 2
) -> Measured:
    """Slice into the empty folder `scratch`, run all ranks in this process, compare with ONNX Runtime.

    ``examples``: how many of the example inputs are run, from the first on.
    """
    options = SliceOptions(allow_replicated=True, strategy=strategy)
    start = time.perf_counter()
    plan = plan_model(model.path, ranks, options=options)
    seconds = time.perf_counter() - start
    manifest = write_slices(plan, scratch / "slices")
    total = sum(plan.source.weights[name].nbytes for name in plan.held)
    split = sum(plan.source.weights[name].nbytes for name in plan.split_weights)
    size = plan.state_size(plan.lengths)
    sent: Counter[str] = Counter()
    error = 0.0
    for number, feeds in enumerate(model.feeds[:examples]):
        expected = lockstep.reference(model.path, feeds)
        with _watched(sent if number == 0 else Counter()):
            found = lockstep.run_slices(scratch / "slices", feeds)
        error = max(error, largest_error(found, expected))
    return Measured(
        ranks=ranks,
        strategy=strategy,
        split_share=split / total,
        rank_share=max(rank.weight_bytes for rank in manifest.ranks) / total,
        planning_seconds=seconds,
        error=error,
        counts=Counter(plan.collective_counts()),
        state=size.token_bytes if size else 0,
        rank_state=size.rank_token_bytes if size else 0,
        sent=sent,
        whole=plan.whole_weights,
    )


def processes_error(model: Model, slices: Path) -> float:
    """The largest relative error when every rank is a process; raises what the launcher raises."""
    error = 0.0
    with start(slices, launcher="local", threads=1, timeout=120) as group:
        for feeds in model.feeds:
            found = group.predict(feeds)
            error = max(error, largest_error([found], lockstep.reference(model.path, feeds)))
    return error


def largest_error(found: list[lockstep.Arrays], expected: Mapping[str, np.ndarray[Any, Any]]) -> float:
    """The largest relative error of any rank's outputs; infinite where names differ."""
    if any(list(outputs) != list(expected) for outputs in found):
        return float("inf")
    return max(
        lockstep.relative_error(outputs[name], value) for outputs in found for name, value in expected.items()
    )


def own_spread(model: Model) -> float:
    """How far plain ONNX Runtime is from itself: the error of its outputs without its own optimisations."""
    session = graphs.session(model.path, optimized=False)
    names = [output.name for output in session.get_outputs()]
    return max(
        largest_error(
            [dict(zip(names, session.run(names, feeds), strict=True))], lockstep.reference(model.path, feeds)
        )
        for feeds in model.feeds
    )


@contextmanager
def _watched(sent: Counter[str]) -> Iterator[None]:
    """Counts the bytes that one rank puts into the collectives of a run, by operator."""
    combine = lockstep._combine

    def watching(nodes: list[Any], values: list[lockstep.Arrays], *more: Any) -> None:
        if nodes[0].op_type != "Recv":
            sent[nodes[0].op_type] += values[0][nodes[0].input[0]].nbytes
        combine(nodes, values, *more)

    with mock.patch.object(lockstep, "_combine", watching):
        yield
