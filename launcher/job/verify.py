"""Comparison of outputs with those of the unsliced model in plain ONNX Runtime, or with given answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from launcher.errors import ConfigError, VerifyError
from ranks.common.tensors import is_extended
from sharding.errors import ModelError

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from sharding.common.arrays import Array
    from sharding.common.encryption import Key
    from sharding.slices.manifest import TensorEntry

TOLERANCES = {
    "float64": 1e-4,
    "float32": 1e-4,
    "tf32": 1e-2,
    "float16": 2e-2,
    "bfloat16": 5e-2,
}
"""Largest relative error by element type: max|a-b| / max|b| over one output. Sums over ranks are rounded in
another order than in one process; float64 outputs may come from float32 arithmetic. TF32 is how GPUs
multiply float32: with 11 bits of each factor, as float16 has, and sums in float32. Types that are not
listed (integers, bool) must agree exactly, 8-bit floats to 2e-1."""

_EIGHT_BITS = 2e-1
_QUANTIZED = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}


@dataclass(frozen=True)
class Comparison:
    """One output: its largest relative error, the tolerance, and what is to be said besides."""

    name: str
    error: float
    tolerance: float
    note: str = ""

    @property
    def good(self) -> bool:
        """Whether the error is within the tolerance (never for NaN)."""
        return self.error <= self.tolerance

    def to_json(self) -> dict[str, object]:
        """As plain JSON values; an error that is no finite number is text."""
        error: float | str = self.error if np.isfinite(self.error) else str(self.error)
        return {
            "output": self.name, "error": error, "tolerance": self.tolerance, "ok": bool(self.good),
            "note": self.note,
        }  # fmt: skip


def tolerance_for(dtypes: Iterable[str]) -> float:
    """The tolerance for an output computed from these element types: that of the coarsest float."""
    found = [TOLERANCES.get(name, _EIGHT_BITS if name.startswith("float") else 0.0) for name in dtypes]
    return max(found, default=0.0)


def compare(name: str, got: Array, want: Array, tolerance: float) -> Comparison:
    """Compares one output with its reference.

    Error: max|got-want| / max|want| over the finite elements. NaN and infinities must stand at the same
    places with the same sign; one that does not makes the error infinite. Other shape or type: infinite.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        note = f"expected {want.dtype} {list(want.shape)}, found {got.dtype} {list(got.shape)}"
        return Comparison(name, float("inf"), tolerance, note)
    if got.dtype.kind in "biuSUO":
        wrong = int(np.count_nonzero(got != want))
        return Comparison(
            name, float("inf") if wrong else 0.0, 0.0, f"{wrong} elements differ" if wrong else ""
        )
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), want.astype(wide)
    finite = np.isfinite(b)
    special = int(b.size - np.count_nonzero(finite))
    same = np.isfinite(a) == finite
    # Where neither is finite: equal infinities, or NaN in both.
    same &= finite | (a == b) | (np.isnan(a) & np.isnan(b))
    if wrong := int(b.size - np.count_nonzero(same)):
        return Comparison(
            name, float("inf"), tolerance, f"{wrong} elements are NaN or infinite in one of the two only"
        )
    note = f"{special} of {b.size} elements are NaN or infinite in both" if special else ""
    if special:
        a, b = a[finite], b[finite]
    largest = float(np.max(np.abs(a - b), initial=0.0))
    scale = float(np.max(np.abs(b), initial=0.0))
    if largest == 0:
        return Comparison(name, 0.0, tolerance, note)
    return Comparison(name, largest / scale if scale else float("inf"), tolerance, note)


def compare_outputs(
    got: Mapping[str, Array], want: Mapping[str, Array], weight_dtypes: Iterable[str] = ()
) -> list[Comparison]:
    """Compares every output; ``weight_dtypes`` are the element types of the model's weights."""
    floats = [dtype for dtype in weight_dtypes if dtype in TOLERANCES]
    results = []
    for name, reference in want.items():
        if name not in got:
            results.append(Comparison(name, float("inf"), 0.0, "this output is missing"))
            continue
        kind = reference.dtype.name
        is_float = kind.startswith(("float", "bfloat"))
        results.append(
            compare(name, got[name], reference, tolerance_for([kind, *floats] if is_float else [kind]))
        )
    return results


def check(comparisons: Sequence[Comparison], model: Path, archive: Path | None = None) -> None:
    """Raises `VerifyError` with every output that is beyond its tolerance: of a sliced model to be like
    ``model``, or of ``model`` itself to be like the answers of ``archive``."""
    bad = [c for c in comparisons if not c.good]
    if bad:
        parts = "; ".join(
            f"{c.name}: relative error {c.error:.3g}, tolerance {c.tolerance:g}"
            + (f" ({c.note})" if c.note else "")
            for c in bad
        )
        if archive is not None:
            raise VerifyError(f"the result of {model} differs from the answers in {archive}: {parts}")
        raise VerifyError(
            f"the sliced model's result differs from that of {model} in plain ONNX Runtime: {parts}"
        )


def read_signature(model: Path, key: Key | None = None) -> tuple[dict[str, str], dict[str, str]]:
    """The element types of a model's inputs and of its outputs by name, read without its weights; raises
    `ConfigError`."""
    from sharding.importers.message import parse_without_weights
    from sharding.onnx_files.protobuf import MalformedError

    try:
        graph = parse_without_weights(model, key).graph
    # Protobuf's errors derive from Exception alone.
    except Exception as problem:
        if isinstance(problem, ModelError) and not isinstance(problem, MalformedError):
            raise ConfigError(f"--verify: {problem}") from None  # an importer's, which says it all
        reason = getattr(problem, "strerror", None) or "it is not an ONNX model, or cut short"
        raise ConfigError(f"--verify: cannot read {model}: {reason}") from None
    held = {tensor.name for tensor in graph.initializer}
    return (
        {value.name: _type_of(value) for value in graph.input if value.name not in held},
        {value.name: _type_of(value) for value in graph.output},
    )


def check_signature(
    source: Path, inputs: Sequence[TensorEntry], outputs: Sequence[TensorEntry], key: Key | None = None
) -> None:
    """Raises `ConfigError` unless the model to compare with has these inputs and outputs."""
    for what, found, entries in zip(
        ("input", "output"), read_signature(source, key), (inputs, outputs), strict=True
    ):
        wanted = {entry.name: str(entry.dtype) for entry in entries}
        for name in [*wanted, *(name for name in found if name not in wanted)]:
            have, want = found.get(name, "none of that name"), wanted.get(name, "none of that name")
            if have != want:
                raise ConfigError(
                    f"--verify: {source} is not the model that was sliced: its {what} {name!r} is expected "
                    f"to be {want}, found {have}; give the unsliced model with --against"
                )


def _type_of(value: onnx.ValueInfoProto) -> str:
    import onnx

    name = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def run_reference(
    model: Path,
    feeds: Mapping[str, Array],
    threads: int | None = None,
    key: Key | None = None,
    timeout: float | None = None,
) -> dict[str, Array]:
    """The outputs of the unsliced model in ONNX Runtime on the CPU; ``key`` is that of an encrypted one.
    ``timeout``: seconds to wait for another process that converts it.

    ONNX Runtime's optimizers are off, for some of them change answers (`ranks.sessions.session.CHANGING`, and
    perhaps others). All but those are on where the model needs them: a quantized model computes in integers
    only with the optimizers, and some models do not run without.

    Raises `ConfigError` if it cannot run.
    """
    from contextlib import nullcontext

    import ranks  # noqa: F401 - before ONNX Runtime: turns its telemetry off
    from ranks.models.imported import as_onnx, decrypted, naming

    with (
        decrypted(model, key) if key is not None else nullcontext(as_onnx(model, timeout)) as file,
        naming(file, model),
    ):
        reason = ""
        for optimized in (True,) if _is_quantized(file) else (False, True):
            try:
                return _answers(file, feeds, threads, optimized=optimized)
            # ONNX Runtime's errors derive from Exception alone.
            except Exception as problem:
                reason = " ".join(str(problem).split())
        raise ConfigError(f"--verify: plain ONNX Runtime cannot run {model}: {reason[:500]}")


def _answers(
    file: Path, feeds: Mapping[str, Array], threads: int | None, *, optimized: bool
) -> dict[str, Array]:
    import onnxruntime

    from ranks.devices.providers import CPU
    from ranks.sessions.session import CHANGING
    from sharding.common import limits
    from sharding.onnx_files.external import target_of

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = limits.cores() if threads is None else threads
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        str(target_of(file)),
        options,
        providers=[CPU],
        disabled_optimizers=list(CHANGING),
    )
    names = [output.name for output in session.get_outputs()]
    inputs = {i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())}
    arrays = _run(session, names, {name: array for name, array in feeds.items() if name in inputs})
    return dict(zip(names, arrays, strict=True))


def _is_quantized(file: Path) -> bool:
    from sharding.importers.message import parse_without_weights

    try:
        graph = parse_without_weights(file).graph
    except Exception:  # ONNX Runtime then says what is wrong with it
        return False
    return any(node.op_type in _QUANTIZED for node in graph.node)


def _run(session: onnxruntime.InferenceSession, names: list[str], feeds: Mapping[str, Array]) -> list[Array]:
    if any(array.dtype.hasobject for array in feeds.values()):
        found: list[Array] = session.run(names, dict(feeds))  # text, which no OrtValue is made of
        return found
    # OrtValues rather than arrays: Python's plain `run` knows no bfloat16.
    values = {name: _to_value(array) for name, array in feeds.items()}
    return [_to_numpy(value) for value in session.run_with_ort_values(names, values)]


def _to_value(array: Array) -> onnxruntime.OrtValue:
    import onnxruntime

    if not is_extended(array.dtype):
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    import onnx

    number = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    raw = array.view(f"u{array.dtype.itemsize}")
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, number)


def _to_numpy(value: onnxruntime.OrtValue) -> Array:
    import ctypes

    import onnx

    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.element_type()))
    if not is_extended(dtype):
        return value.numpy()
    buffer = (ctypes.c_uint8 * value.tensor_size_in_bytes()).from_address(value.data_ptr())
    copied: Array = np.frombuffer(memoryview(buffer), dtype).reshape(value.shape()).copy()
    return copied


def find_source(folder: Path, source_file: str, size: int, sha256: str, against: Path | None) -> Path:
    """The unsliced model that a slice folder was made from: ``against``, else a file of the manifest's name,
    size and hash in the folder or the one above it; raises `ConfigError`."""
    from sharding.slices.manifest import sha256_of

    if against is not None:
        return against
    changed = None
    for place in (folder / source_file, folder.absolute().parent / source_file):
        try:
            if place.is_file():
                if place.stat().st_size == size and sha256_of(place) == sha256:
                    return place
                changed = changed or place
        except OSError:
            continue
    if changed is not None:
        raise ConfigError(
            f"--verify: {changed} has changed since {folder} was sliced from it (its SHA-256 differs): slice "
            "it again, or give the unsliced model with --against MODEL.onnx"
        )
    raise ConfigError(
        f"--verify: the unsliced model {source_file} of {folder} is neither in that folder nor beside it; "
        "give it with --against MODEL.onnx"
    )
