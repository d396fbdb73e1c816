"""Values that are no tensors (sequences, maps, optional values): what they are in words, and that ranks
neither take nor give them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sharding.errors import ModelError

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir


def kind_of(declared: onnx.TypeProto) -> str | None:
    """``sequence of maps`` and the like; None for tensors, and where nothing is declared."""
    which = declared.WhichOneof("value")
    if which in {None, "tensor_type"}:
        return None
    if which == "sequence_type":
        return f"sequence of {kind_of(declared.sequence_type.elem_type) or 'tensor'}s"
    if which == "optional_type":
        return f"optional {kind_of(declared.optional_type.elem_type) or 'tensor'}"
    return str(which).removesuffix("_type").replace("_", " ")


def has_map(declared: onnx.TypeProto) -> bool:
    """Whether a map is in the type, at any depth."""
    which = declared.WhichOneof("value")
    if which in {"sequence_type", "optional_type"}:
        return has_map(getattr(declared, which).elem_type)
    return bool(which == "map_type")


def refuse_others(graph: onnx.GraphProto, path: Path) -> None:
    """Raises `ModelError` where a model takes or gives what is no tensor."""
    for what, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            kind = kind_of(value.type)
            if kind is not None:
                raise refused(path, what, value.name, kind)


def refuse_others_of(graph: ir.Graph, path: Path) -> None:
    """The same of a graph that was read."""
    import onnx_ir as ir

    for what, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            if isinstance(value.type, ir.SequenceType | ir.OptionalType):
                raise refused(path, what, value.name or "", _words(value.type))


def _words(declared: ir.SequenceType | ir.OptionalType) -> str:
    import onnx_ir as ir

    inner = declared.elem_type
    name = _words(inner) if isinstance(inner, ir.SequenceType | ir.OptionalType) else "tensor"
    return f"sequence of {name}s" if isinstance(declared, ir.SequenceType) else f"optional {name}"


def refused(path: Path, what: str, name: str, kind: str) -> ModelError:
    """The error for an input or output (``what``) of this kind."""
    article = "an" if kind.startswith("o") else "a"
    zipmap = what == "output" and "map" in kind
    hint = " (of scikit-learn's converter: with the option zipmap=False)" if zipmap else ""
    return ModelError(
        f"{path} cannot run on ranks: its {what} {name!r} is {article} {kind}, and ranks take and give "
        f"tensors only: export the model with tensors instead{hint}, or run it in one process with "
        "ranks.Model."
    )


def declared_shape(kind: onnx.TypeProto | None) -> tuple[int | str | None, ...] | None:
    """The lengths of a tensor as a file declares them: a number, a symbol, or None for one that is open, as a
    negative number is too. None where there is no shape, or no tensor."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    return tuple(
        axis.dim_value if axis.HasField("dim_value") and axis.dim_value >= 0 else axis.dim_param or None
        for axis in kind.tensor_type.shape.dim
    )
