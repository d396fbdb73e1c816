"""Answers that are given to verify a converted model with, and how far the model's own are from them."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from launcher.errors import ConfigError
from sharding.common.nearby import reason, shown
from sharding.onnx_files.kinds import declared_shape
from sharding.onnx_files.placeholders import placeholder

if TYPE_CHECKING:
    import onnx

    from sharding.common.arrays import Array


def read_arrays(flag: str, path: Path) -> dict[str, Array]:
    """The arrays of an archive by name. Raises `ConfigError`."""
    from ranks.evaluation.compressed import check_member, check_memory
    from ranks.evaluation.errors import EvaluationError

    if path.exists() and not path.is_file():  # to open a pipe would wait for its writer
        raise ConfigError(f"{flag} {path}: expected a NumPy archive (.npz), found a folder, device or pipe")
    instead = placeholder(path)
    if instead is not None:
        raise ConfigError(f"{flag} {path} {instead}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            members = archive.zip.infolist()
            check_memory(sum(member.file_size for member in members), f"{flag} {path}")
            for member in members:
                check_member(member, f"{flag} {path}: array {member.filename.removesuffix('.npy')!r}")
            return {name: archive[name] for name in archive.files}
    except EvaluationError as error:
        raise ConfigError(str(error)) from None
    # Damaged archives raise anything from zlib.error to NotImplementedError; they have no common base.
    except Exception as error:
        damaged = not isinstance(error, OSError) or isinstance(error, zipfile.BadZipFile)
        why = None if damaged else reason(path, error)
        if "allow_pickle" in str(error) and zipfile.is_zipfile(
            path
        ):  # else NumPy takes any file for a pickle
            why = "an array in it holds Python objects, which are never unpickled: save numbers or text"
        raise ConfigError(f"{flag} {shown(path)}: {why or 'it is no NumPy archive (.npz)'}") from None


def expected(
    model: onnx.ModelProto, answers: Mapping[str, Array], archive: Path
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The inputs to verify a model with, as it takes them, and the outputs that are right, by name.

    Raises `ConfigError` where the archive lacks one, or has an input of another type or shape.
    """
    from sharding.importers.value_names import inputs_of

    names = inputs_of(model)
    values = {value.name: value for value in model.graph.input}
    where = f"--verify {archive}"
    feeds = {name: _as_input(a, values[name], where) for name, a in _named(answers, names, "in", where)}
    outputs = [value.name for value in model.graph.output]
    return feeds, dict(_named(answers, outputs, "out", where))


def _as_input(array: Array, value: onnx.ValueInfoProto, where: str) -> Array:
    import onnx

    from ranks.common.tensors import OBJECT, as_text, is_extended, is_text

    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        raise ConfigError(f"{where}: the input {value.name!r} is no tensor, so no array can be given for it")
    expected = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    found = array.dtype.newbyteorder("=")
    # .npy cannot name bfloat16 and the 8-bit floats, so they come as float32.
    fits = found == expected or (is_extended(expected) and found == np.float32)
    if expected.hasobject:
        fits = found == OBJECT or is_text(found)
    lengths = declared_shape(value.type)
    shaped = lengths is None or (
        len(lengths) == array.ndim
        and all(not isinstance(n, int) or n == have for n, have in zip(lengths, array.shape, strict=True))
    )
    if not (fits and shaped):
        shape = ", ".join("?" if length is None else str(length) for length in lengths or ())
        name = "text" if expected.hasobject else str(expected)
        raise ConfigError(
            f"{where}: expected {name} [{shape}] for the input {value.name!r}, found {array.dtype} "
            f"{list(array.shape)}"
        )
    return (
        as_text(array, f"{where}: the input {value.name!r}") if expected.hasobject else array.astype(expected)
    )


def verify(model: Path, feeds: Mapping[str, Array], wanted: Mapping[str, Array], *, archive: Path) -> None:
    """Prints how far the model's answers are from those ``wanted``, which come from the file ``archive``;
    raises `VerifyError` where they are too far."""
    from launcher.common.report import print_table
    from launcher.job.verify import check, compare_outputs, run_reference
    from ranks.common.tensors import is_extended

    got = {
        name: array.astype(np.float32)
        if is_extended(array.dtype) and name in wanted and wanted[name].dtype == np.float32
        else array
        for name, array in run_reference(model, feeds).items()
    }
    comparisons = compare_outputs(got, wanted, computed_types(model))
    rows = [
        [c.name, f"{c.error:.2e}", f"{c.tolerance:g}", "ok" if c.good else "DIFFERS"] for c in comparisons
    ]
    print_table(["output", "relative error", "tolerance", ""], rows, "lrrl")
    check(comparisons, model, archive)


def computed_types(model: Path) -> set[str]:
    """The types shorter than float32 (float16, bfloat16) in which any part of an ONNX file computes."""
    import onnx

    from sharding.importers.message import parse_without_weights
    from sharding.onnx_files.walk import graphs_in

    short = {onnx.TensorProto.FLOAT16: "float16", onnx.TensorProto.BFLOAT16: "bfloat16"}
    message = parse_without_weights(model)
    found: set[int] = set()
    for graph in graphs_in(message.graph, *message.functions):
        values = [*graph.value_info]
        if isinstance(graph, onnx.GraphProto):
            values += [*graph.input, *graph.output]
            found.update(weight.data_type for weight in graph.initializer)
        found.update(value.type.tensor_type.elem_type for value in values)
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Cast" and attribute.name == "to":
                    found.add(attribute.i)
                if attribute.HasField("t"):
                    found.add(attribute.t.data_type)
    return {name for number, name in short.items() if number in found}


def _named(
    answers: Mapping[str, Array], names: list[str], prefix: str, where: str
) -> Iterator[tuple[str, Array]]:
    for index, name in enumerate(names):
        key = name if name in answers else f"{prefix}_{index}"
        if key not in answers:
            raise ConfigError(f"{where}: there is neither {name!r} nor {key!r} in the file")
        yield name, answers[key]
