"""From one model to one model per rank: read, plan, write. No processes, no sessions, no torch, no MPI.

Importing this package imports nothing heavy: a rank that only reads a manifest never loads `onnx_ir`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from sharding.common.encryption import Key
    from sharding.demands.options import SliceOptions as SliceOptions
    from sharding.importers.write import Progress
    from sharding.planning.plan import Plan as Plan
    from sharding.slices.manifest import Manifest as Manifest
    from sharding.slices.manifest import read_manifest as read_manifest
    from sharding.slices.mesh import Mesh as Mesh

    Given = str | Path | bytes | bytearray | memoryview | onnx.ModelProto | ir.Model


def plan_model(
    model: Given,
    ranks: int,
    *,
    options: SliceOptions | None = None,
    allow_replicated: bool = False,
    key: Key | None = None,
) -> Plan:
    """Plans how to slice a model for ``ranks`` ranks; see `sharding.planning.plan.plan_model`.

    ``model``: the path of a file, its bytes, an `onnx.ModelProto` or an `onnx_ir.Model`.
    """
    from sharding.onnx_files.given import GivenModel, is_path
    from sharding.planning.plan import plan_model as plan

    if is_path(model):
        return plan(Path(model), ranks, options=options, allow_replicated=allow_replicated, key=key)
    import weakref

    given = GivenModel(model)
    made = plan(given.path, ranks, options=options, allow_replicated=allow_replicated, key=key)
    weakref.finalize(made.source, given.close)  # a plan's weights lie in the file
    return made


def slice_model(
    model: Given,
    ranks: int,
    output: str | Path,
    *,
    options: SliceOptions | None = None,
    allow_replicated: bool = False,
    progress: Progress | None = None,
    rank: int | None = None,
    key: Key | None = None,
) -> Manifest:
    """Slices a model into one rank model per rank and returns the manifest of the folder ``output``.

    ``model``: the path of a file, its bytes, an `onnx.ModelProto` or an `onnx_ir.Model`.
    ``allow_replicated`` is a short form of the option of that name; ``progress`` is called with the bytes of
    weights written so far and in all; ``rank`` writes what that rank runs alone, so that hosts can each write
    their own, into one folder or several; ``key`` is that of an encrypted model, whose slices are plain.

    Raises `ModelError` for a file that cannot be read, and `SliceError` for an impossible number of ranks,
    options that the model does not allow, an output folder that holds something else, or, unless
    ``allow_replicated``, a model of which no weight can be split.
    """
    from sharding.slices.folder import check_output
    from sharding.writing.write import write_slices

    check_output(Path(output))
    planned = plan_model(model, ranks, options=options, allow_replicated=allow_replicated, key=key)
    return write_slices(planned, output, progress, rank=rank)


_MODULES = {
    "Manifest": "sharding.slices.manifest",
    "Mesh": "sharding.slices.mesh",
    "Plan": "sharding.planning.plan",
    "SliceOptions": "sharding.demands.options",
    "read_manifest": "sharding.slices.manifest",
}
__all__ = ["Manifest", "Mesh", "Plan", "SliceOptions", "plan_model", "read_manifest", "slice_model"]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
