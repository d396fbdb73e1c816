"""A plan as plain JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from sharding.slices import state

if TYPE_CHECKING:
    from sharding.planning.plan import Plan


def to_json(plan: Plan) -> dict[str, object]:
    """What `shardrun slice --json` prints."""
    return {
        "source": plan.source.file_name,
        "world_size": plan.world_size,
        "strategy": plan.strategy,
        "mesh": dict(plan.mesh.axes),
        "micro_batches": plan.micro_batches,
        "lengths": dict(plan.lengths),
        "batch": plan.batch.to_json(),
        "reason": plan.reason,
        "stages": [
            {
                "nodes": [plan.steps[index].node.name or "" for index in members],
                "weight_bytes": plan.stage_weight_bytes(stage),
                "seconds": plan.pipeline.seconds[stage],
            }
            for stage, members in enumerate(plan.pipeline.members)
        ],
        "rank_weight_bytes": plan.rank_weight_bytes(),
        "split_share": plan.split_share(),
        "weights": {
            name: {
                "placement": [str(placement) for placement in held],
                "dtype": plan.source.weights[name].dtype,
                "shape": list(plan.source.weights[name].shape),
                "bytes": plan.source.weights[name].nbytes,
                "stages": list(plan.weight_stages(name)),
            }
            for name, held in plan.weights.items()
        },
        "collectives": [
            {key: value for key, value in asdict(item).items() if key != "within" or value}
            | {"shape": list(item.shape)}
            for item in plan.collectives
        ],
        **({"state": state.to_json(plan.state)} if plan.state else {}),
        "whole": plan.whole,
        "whole_weights": list(plan.whole_weights),
        "warning": plan.warning,
    }
