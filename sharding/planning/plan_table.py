"""A plan as the rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sharding.common.text import counted, human_bytes, listed_collectives, reason_rows

if TYPE_CHECKING:
    from sharding.planning.plan import Plan


def rows(plan: Plan) -> list[tuple[str, str]]:
    """What the command shows, as (what, value)."""
    total = sum(plan.source.weights[name].nbytes for name in plan.held)
    split = sum(plan.source.weights[name].nbytes for name in plan.split_weights)
    listed = [
        ("ranks", str(plan.world_size)),
        *_mesh_rows(plan),
        ("weights", f"{len(plan.weights)} of {human_bytes(total)}"),
        (
            "split weights",
            f"{len(plan.split_weights)} of {human_bytes(split)} ({_percent(split, total)})",
        ),
        (
            "each rank holds",
            f"{human_bytes(plan.rank_weight_bytes())} ({_percent(plan.rank_weight_bytes(), total)})",
        ),
        *([("share of split weights", f"{100 * plan.split_share():.1f} %")] if plan.split_weights else []),
        ("collectives", listed_collectives((item.op, item.within) for item in plan.collectives)),
        *([("state", size.text())] if (size := plan.state_size(plan.lengths)) else []),
        *reason_rows(plan.reason),
    ]
    if plan.lengths:
        lengths = ", ".join(f"{name}={length}" for name, length in plan.lengths.items())
        listed.append(("planned for", lengths))
    if plan.whole:
        listed.append(
            ("whole operators", ", ".join(f"{count} {op}" for op, count in sorted(plan.whole.items())))
        )
    if plan.whole_weights:
        listed.append(("whole weights", _listed(plan.whole_weights)))
    if plan.warning:
        listed.append(("warning", plan.warning.partition(":")[0]))
    return listed


def _mesh_rows(plan: Plan) -> list[tuple[str, str]]:
    if plan.strategy == "tensor":
        return []
    rows = [("mesh", ", ".join(f"{size} {name}" for name, size in plan.mesh.axes if size > 1))]
    total = sum(plan.pipeline.seconds)
    for stage in range(plan.pipeline.count) if plan.pipeline.count > 1 else ():
        members = plan.pipeline.members[stage]
        size = human_bytes(plan.stage_weight_bytes(stage))
        share = f", {_percent(plan.pipeline.seconds[stage], total)} of the estimated time"
        rows.append((f"stage {stage}", f"{counted(len(members), 'node')}, {size} on each rank{share}"))
    if plan.pipeline.count > 1:
        rows.append(("micro-batches", str(plan.micro_batches)))
    if plan.batch.inputs:
        cut = ", ".join(f"{name} on axis {axis}" for name, axis in plan.batch.inputs.items())
        rows.append(("batch", f"cut: {cut}"))
    return rows


def _percent(part: float, total: float) -> str:
    return f"{100 * part / total:.1f} %" if total else "0 %"


def _listed(names: Sequence[str], limit: int = 4) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
