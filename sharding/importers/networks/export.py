"""A ``torch.nn.Module`` or an exported program to ONNX by torch's exporter; weights stay in its memory."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sharding.errors import ModelError, OptionError
from sharding.importers import torch_import
from sharding.importers.checkpoints.base import CHUNK, bytes_of
from sharding.importers.checkpoints.torch_file import as_array
from sharding.importers.networks.arguments import are_named, arguments_of, before_variadic
from sharding.importers.networks.factory import described
from sharding.importers.networks.inputs import Input, example_lengths, name_axes
from sharding.importers.networks.packages import need
from sharding.onnx_files.protobuf import INLINE_BYTES
from sharding.onnx_files.walk import graphs_in

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class HeldWeight:
    """A weight in torch's memory, to be written in pieces."""

    tensor: Any
    nbytes: int

    def chunks(self) -> Iterator[bytes]:
        """The bytes in pieces of a few MB."""
        tensor = self.tensor
        data = bytes_of(
            as_array(tensor, "A weight") if hasattr(tensor, "detach") else np.ascontiguousarray(tensor)
        )
        for start in range(0, len(data), CHUNK):
            yield bytes(data[start : start + CHUNK])


def export_module(
    module: Any, inputs: Sequence[Input], lengths: Mapping[str, int], opset: int, what: str
) -> tuple[onnx.ModelProto, dict[str, HeldWeight]]:
    """Exports a network for inference.

    Inputs are given by the names of ``forward``'s arguments, or in their order to ``*args``. Returns the
    model and the weights that it only declares. Raises `ModelError` where torch cannot export it,
    `OptionError` where the inputs do not fit.
    """
    torch = need("torch", f"{what} is exported by torch")
    need("onnxscript", f"{what} is exported by torch.onnx")
    arguments = arguments_of(module)
    if not inputs:
        example = arguments[0] if arguments else "x"
        raise OptionError(
            f"{what}: give its inputs with --input NAME:SHAPE[:DTYPE], such as --input "
            f"{example}:batch,3,224,224:float32 (its arguments: {', '.join(arguments) or 'not known'})."
        )
    by_name = are_named(module, inputs, what)
    known = example_lengths(inputs, lengths)
    examples = [_example(item, known) for item in inputs]
    shapes = [
        {axis: torch.export.Dim.DYNAMIC for axis, n in enumerate(item.shape) if isinstance(n, str)}
        for item in inputs
    ]
    names = [item.name for item in inputs]
    fixed = before_variadic(module)
    nested = (
        shapes if fixed is None else [*shapes[:fixed], *([tuple(shapes[fixed:])] if shapes[fixed:] else [])]
    )
    module.eval()
    with quiet(), torch.no_grad():
        try:
            program = torch.export.export(
                module,
                () if by_name else tuple(examples),
                dict(zip(names, examples, strict=True)) if by_name else {},
                dynamic_shapes=dict(zip(names, shapes, strict=True)) if by_name else tuple(nested),
                strict=False,
            )
        except Exception as error:  # the network's own code runs in here
            raise ModelError(
                f"{what} cannot be exported with the inputs {_shown(inputs)}: {_cause(error)}."
            ) from error
    model, weights = export_program(program, opset, what)
    name_axes(model, inputs)
    if not by_name:
        from sharding.importers.value_names import rename_inputs

        rename_inputs(model, names)
    return model, weights


def export_program(program: Any, opset: int, what: str) -> tuple[onnx.ModelProto, dict[str, HeldWeight]]:
    """Turns a program of ``torch.export`` into ONNX. Raises `ModelError`."""
    torch = need("torch", f"{what} is exported by torch")
    need("onnxscript", f"{what} is exported by torch.onnx")
    import onnx_ir as ir

    with quiet(), torch.no_grad():
        try:
            made = torch.onnx.export(program, dynamo=True, opset_version=opset, verbose=False)
        except Exception as error:
            raise ModelError(f"{what} has no form in ONNX of opset {opset}: {_cause(error)}.") from error
    graph = made.model.graph
    weights: dict[str, HeldWeight] = {}
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.nbytes <= INLINE_BYTES:
            continue
        weights[name] = HeldWeight(_raw(tensor), tensor.nbytes)
        value.const_value = ir.ExternalTensor(
            "held", 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=name
        )
    model: onnx.ModelProto = ir.serde.serialize_model(made.model)
    found = model.opset_import[0].version if model.opset_import else 0
    if not any(item.domain == "" and item.version == opset for item in model.opset_import):
        raise ModelError(f"{what} could be exported with opset {found} only, not {opset}.")
    _forget_source(model.graph)
    _name_outputs(model, made.exported_program)
    return model, weights


def _raw(tensor: Any) -> Any:
    """The torch tensor that the exporter holds, or the array of a constant that it made."""
    raw = getattr(tensor, "raw", None)
    return raw if hasattr(raw, "detach") else tensor.numpy()


def _forget_source(model_graph: Any) -> None:
    """Takes out the exporter's notes: lines of source, with folders of whoever exported it."""
    for graph in graphs_in(model_graph):
        graph.doc_string = ""
        del graph.metadata_props[:]
        for item in (*graph.input, *graph.output, *graph.value_info, *graph.initializer, *graph.node):
            del item.metadata_props[:]
            item.doc_string = ""


def _name_outputs(model: onnx.ModelProto, program: Any) -> None:
    """Names outputs by the keys of what the network returns, unless inputs are named so; otherwise output, or
    output_0, output_1, ..."""
    from sharding.importers.value_names import default_outputs, rename_outputs

    count = len(model.graph.output)
    names: list[str] = []
    with contextlib.suppress(Exception):  # torch's own structures: names that it does not tell are made up
        pytree = torch_import.load("torch.utils._pytree")
        spec = program.call_spec.out_spec
        tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
        paths = pytree.tree_flatten_with_path(tree)[0]
        keys = [[getattr(key, "key", getattr(key, "idx", "")) for key in path] for path, _ in paths]
        if all(path and isinstance(path[0], str) for path in keys):
            names = [".".join(str(key) for key in path) for path in keys]
    given = {value.name for value in model.graph.input}
    usable = len(names) == count and len(set(names)) == count and not given & set(names)
    rename_outputs(model, names if usable else default_outputs(count))


def _example(item: Input, lengths: Mapping[str, int]) -> Any:
    torch = torch_import.load()
    shape = tuple(lengths[n] if isinstance(n, str) else n for n in item.shape)
    if item.array is not None:
        if item.array.shape == shape:
            return torch.from_numpy(np.array(item.array, item.dtype))
        raise OptionError(
            f"The example of input {item.name!r} has the shape {list(item.array.shape)}, not {list(shape)}."
        )
    try:
        # Ones: indices and masks as well as numbers may be so.
        return torch.ones(shape, dtype=getattr(torch, item.dtype))
    except RuntimeError:
        raise OptionError(
            f"The input {item.name!r} of shape {list(shape)} does not fit into memory: give axes that stay "
            "open a name in place of a length."
        ) from None


def _shown(inputs: Sequence[Input]) -> str:
    return ", ".join(f"{i.name}:{','.join(map(str, i.shape))}:{i.dtype}" for i in inputs)


def _cause(error: BaseException) -> str:
    """The innermost error: torch's exporter puts pages of advice around it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return described(error)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what the exporter says besides: remarks, progress, tracebacks, whole graphs.

    Where everything is logged (``--debug``) it is all shown.
    """
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        yield
        return
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
