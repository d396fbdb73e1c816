"""Versions of the ONNX format and of operators that this ONNX Runtime does not run, in one sentence.

What it runs is asked of ONNX Runtime itself, with a model of one node: no list here could keep up with it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ranks.devices.providers import CPU
from ranks.errors import ModelError
from sharding.slices.domains import MICROSOFT

if TYPE_CHECKING:
    import onnx

_SURE = {"": 23, "ai.onnx": 23, "ai.onnx.ml": 5, MICROSOFT: 1}
"""What every ONNX Runtime that this package may be installed with runs, so that none need be asked."""
_SURE_IR = 11

_OPSET = re.compile(r"Opset (\d+) is under development.* for domain (\S+) is till opset (\d+)", re.DOTALL)
_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")


def check_versions(model: onnx.ModelProto, path: Path) -> None:
    """Raises `ModelError` for a model of versions that ONNX Runtime here does not run."""
    wanted = {item.domain: item.version for item in model.opset_import}
    if model.ir_version <= _SURE_IR and all(
        version <= _SURE.get(domain, version) for domain, version in wanted.items()
    ):
        return
    import onnx
    import onnxruntime as ort

    shape = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [1])
    small = onnx.ModelProto(ir_version=model.ir_version)
    small.opset_import.extend(model.opset_import)
    small.graph.name = "versions"
    small.graph.node.append(onnx.helper.make_node("Identity", ["x"], ["y"]))
    small.graph.input.append(onnx.ValueInfoProto(name="x", type=shape))
    small.graph.output.append(onnx.ValueInfoProto(name="y", type=shape))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(small.SerializeToString(), options, providers=[CPU])
    except Exception as error:  # ONNX Runtime's errors derive from Exception alone
        found = too_new(str(error))
        if found is not None:
            raise ModelError(f"{path} {found}") from None


def too_new(text: str) -> str | None:
    """The rest of a sentence about a model whose versions ONNX Runtime refused with ``text``; None where it
    said something else."""
    import onnxruntime as ort

    runtime = f"ONNX Runtime {ort.__version__}"
    if found := _OPSET.search(text):
        wanted, domain, most = found.groups()
        return (
            f"is written with opset {wanted} of {domain}, but {runtime} runs opsets up to {most}: export it "
            f"with opset {most} or lower, or install a newer ONNX Runtime."
        )
    if found := _IR.search(text):
        wanted, most = found.groups()
        return (
            f"has the IR version {wanted}, but {runtime} reads versions up to {most}: save it with an older "
            f"release of onnx (or set the model's ir_version to {most}), or install a newer ONNX Runtime."
        )
    return None
