"""Seconds of nodes as ONNX Runtime measured them: the JSON that ``SessionOptions.enable_profiling`` writes.

The format is that of Chrome's trace events: a list of objects; those of ``"cat": "Node"`` whose name ends in
``_kernel_time`` say in ``dur`` how many microseconds one run of a node's kernel took. Profiles are best made
with graph optimisations off: fused nodes have other names than the model's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.errors import OptionError
from sharding.search.cost import node_seconds

if TYPE_CHECKING:
    from sharding.graph.sizes import Sizes
    from sharding.search.steps import Step

MAX_BYTES = 1 << 30
_SUFFIX = "_kernel_time"


def read_profile(path: str | Path) -> dict[str, float]:
    """Node name -> mean seconds of one run. Raises `OptionError` for a file that is no such profile."""
    path = Path(path)
    try:
        if not path.is_file():  # to read a pipe would wait for who writes to it
            state = "is not a file" if path.exists() else "does not exist"
            raise OptionError(f"The profile {path} {state}.")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise OptionError(f"The profile {path} has {size} bytes; at most {MAX_BYTES} are read.")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise OptionError(f"The profile {path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise OptionError(
            f"The profile {path} is not JSON ({error}): a session writes it whole only when it ends."
        ) from None
    if not isinstance(data, list):
        raise _error(path, "$", "a list of events", data)
    runs: dict[str, list[float]] = {}
    for index, event in enumerate(data):
        name, seconds = _kernel_time(event, path, f"$[{index}]")
        if name:
            runs.setdefault(name, []).append(seconds)
    if not runs:
        raise OptionError(
            f"The profile {path} has no kernel times of nodes: run the model at least once with "
            f"SessionOptions.enable_profiling."
        )
    # The first run allocates; it counts only where it is alone.
    return {name: sum(times[1:] or times) / len(times[1:] or times) for name, times in runs.items()}


def _kernel_time(event: object, path: Path, where: str) -> tuple[str, float]:
    """The node and seconds of a kernel's event; no name for any other event."""
    if not isinstance(event, dict):
        raise _error(path, where, "an object", event)
    name = event.get("name")
    if event.get("cat") != "Node" or not isinstance(name, str) or not name.endswith(_SUFFIX):
        return "", 0.0
    duration = event.get("dur")
    if isinstance(duration, bool) or not isinstance(duration, int | float) or not 0 <= duration < 1e15:
        raise _error(path, f"{where}.dur", "a number of microseconds", duration)
    return name.removesuffix(_SUFFIX), duration / 1e6


def _error(path: Path, where: str, expected: str, found: object) -> OptionError:
    shown = json.dumps(found, default=str)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return OptionError(f"The profile {path}: {where} must be {expected}, but is {shown}.")


def step_seconds(graph: Sequence[Step], measured: Mapping[str, float], sizes: Sizes) -> list[float]:
    """Seconds of each step on one rank that does all of it: measured, else estimated, in proportion."""
    estimates = [node_seconds(step, sizes) for step in graph]
    if not measured:
        return estimates
    pairs = [
        (measured[step.node.name or ""], estimate)
        for step, estimate in zip(graph, estimates, strict=True)
        if (step.node.name or "") in measured
    ]
    total = sum(estimate for _, estimate in pairs)
    factor = sum(seconds for seconds, _ in pairs) / total if total else 1.0
    return [
        measured.get(step.node.name or "", estimate * factor)
        for step, estimate in zip(graph, estimates, strict=True)
    ]
