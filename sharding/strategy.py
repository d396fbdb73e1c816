"""Which mesh a slicing gets: as asked, or the one that ``auto`` finds best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharding.errors import SliceError
from sharding.mesh import Mesh
from sharding.options import STRATEGIES, SliceOptions

if TYPE_CHECKING:
    from sharding.plan import Plan, Planner


def asked_mesh(options: SliceOptions, ranks: int) -> Mesh | None:
    """The mesh that the options say; None where ``auto`` is to choose.

    Raises `SliceError` for options that no mesh of this many ranks fulfils.
    """
    if options.strategy not in STRATEGIES:
        raise SliceError(f"The strategy must be one of {', '.join(STRATEGIES)}, but is {options.strategy!r}.")
    pieces = options.micro_batches
    if pieces is not None and (not isinstance(pieces, int) or isinstance(pieces, bool) or pieces < 1):
        raise SliceError(f"The number of micro-batches must be a whole number from 1 up, but is {pieces!r}.")
    if options.mesh is not None:
        if options.mesh.size != ranks:
            raise SliceError(
                f"The mesh {options.mesh} has {options.mesh.size} ranks, but {ranks} are asked for: the "
                f"product of its axes must be the number of ranks."
            )
        return options.mesh
    return None if options.strategy == "auto" else Mesh.of(**{options.strategy: ranks})


def choose(planner: Planner, ranks: int) -> Plan:
    """The best of all meshes of this many ranks that the model allows."""
    found: list[Plan] = []
    refused: list[SliceError] = []
    for mesh in _meshes(ranks):
        try:
            found.append(planner.plan(mesh, strict=False))
        except SliceError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return min(found, key=lambda plan: (plan.seconds(), plan.rank_weight_bytes()))


def _meshes(ranks: int) -> list[Mesh]:
    """Pure strategies first, then mixes."""
    pure = [Mesh.of(**{axis: ranks}) for axis in ("tensor", "pipeline", "data")]
    return pure if ranks > 1 else pure[:1]
