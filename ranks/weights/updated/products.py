"""Products with variable weights, written so that ONNX Runtime computes them as fast as with constant ones.

In ``x @ w``, ONNX Runtime packs a constant w once. If w is an input, it must rearrange w in every run, which
takes longer than the product where x has few rows. In ``(w' @ x')'`` (a quote: transposed) w' is the left
factor, which ONNX Runtime reads as it lies; only the few rows of x are rearranged. w' is made once per
update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sharding.onnx_files.nodes import make_node
from sharding.slices.domains import MICROSOFT

if TYPE_CHECKING:
    import onnx

    from sharding.common.names import Names

_DOMAINS = ("", "ai.onnx")
_FLOAT = 1


def right_factors(nodes: Iterable[onnx.NodeProto]) -> list[str]:
    """The right factors of products that might be written anew."""
    return [node.input[1] for node in nodes if _is_product(node)]


def matrices_in(model: onnx.ModelProto) -> dict[str, tuple[int, int]]:
    """The lengths of a model's outputs that are matrices of float32, as far as ONNX infers them."""
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # of operators that are not the standard's, say: they stay as they are
        return {}
    found = {}
    for value in inferred.graph.output:
        tensor = value.type.tensor_type
        if tensor.elem_type == _FLOAT and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            lengths = [dim.dim_value for dim in tensor.shape.dim]
            if len(lengths) == 2:
                found[value.name] = (lengths[0], lengths[1])
    return found


class Products:
    """Writes products of one model anew."""

    def __init__(
        self,
        model: onnx.ModelProto,
        matrices: Mapping[str, tuple[int, int]],
        turns: Mapping[str, str],
        names: Names,
    ) -> None:
        """``matrices``: values that variable weights decide, and their lengths; ``turns``: those among them
        that are another one transposed."""
        self._model, self._matrices, self._turns, self._names = model, matrices, turns, names
        self.turned: dict[str, str] = {}
        """New value -> the matrix that it is the transposed of."""
        self._version = max(
            (item.version for item in model.opset_import if item.domain in _DOMAINS), default=1
        )
        self._flat: dict[str, tuple[str, str]] = {}
        self._ranks = {
            value.name: len(value.type.tensor_type.shape.dim)
            for value in (*model.graph.input, *model.graph.value_info)
            if value.type.tensor_type.HasField("shape")
        }

    def write(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """The nodes, with others in place of the products that can be written so."""
        result: list[onnx.NodeProto] = []
        for node in nodes:
            written = self._product(node) if _is_product(node) else None
            result += [node] if written is None else written
        if len(result) > len(nodes) and all(item.domain != MICROSOFT for item in self._model.opset_import):
            self._model.opset_import.add(domain=MICROSOFT, version=1)
        return result

    def _product(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        x, w, *more = node.input
        attributes = {item.name: item for item in node.attribute}
        lengths = self._matrices.get(w)
        if lengths is None or 0 in lengths or x in self._matrices:
            return None
        straight = "transB" in attributes and attributes["transB"].i == 1
        rows, columns = lengths[::-1] if straight else lengths
        flat = node.op_type == "Gemm" or self._ranks.get(x) == 2
        if not flat and self._version < 15:  # Shape cannot leave out an axis, Reshape make none of length 0
            return None
        left = w if straight else self._turned(w)
        output = node.output[0]
        new: list[onnx.NodeProto] = []
        if flat:
            target = ""
        else:
            x, target = self._flattened(x, rows, new)
        product, result = self._fresh(f"{output}/product"), output
        alpha = {"alpha": attributes["alpha"].f} if "alpha" in attributes else {}
        new.append(_node("FusedMatMul", [left, x], [product], domain=MICROSOFT, transB=1, **alpha))
        if target or more:
            result = self._fresh(f"{output}/rows")
        new.append(_node("Transpose", [product], [result], perm=[1, 0]))
        if target:
            shape = self._fresh(f"{output}/shape")
            new.append(_node("Concat", [target, self._constant([columns])], [shape], axis=0))
            new.append(_node("Reshape", [result, shape], [output], allowzero=1))
        elif more:
            new.append(_node("Add", [result, more[0]], [output]))
        return new

    def _turned(self, w: str) -> str:
        if w in self._turns:
            return self._turns[w]
        known = next((name for name, matrix in self.turned.items() if matrix == w), None)
        if known is None:
            known = self._fresh(f"{w}/turned")
            self.turned[known] = w
        return known

    def _flattened(self, x: str, rows: int, new: list[onnx.NodeProto]) -> tuple[str, str]:
        """``x`` as a matrix, and the lengths of its axes but the last; made once for all products with it."""
        if x not in self._flat:
            matrix, lengths = self._fresh(f"{x}/matrix"), self._fresh(f"{x}/lengths")
            new.append(_node("Shape", [x], [lengths], end=-1))
            new.append(_node("Reshape", [x, self._constant([-1, rows])], [matrix]))
            self._flat[x] = matrix, lengths
        return self._flat[x]

    def _constant(self, numbers: Sequence[int]) -> str:
        import onnx

        name = self._fresh(f"shardrun/lengths_{'_'.join(map(str, numbers))}")
        tensor = onnx.numpy_helper.from_array(np.array(numbers, np.int64), name)
        self._model.graph.initializer.append(tensor)
        return name

    def _fresh(self, wanted: str) -> str:
        return self._names.fresh(wanted)


def _is_product(node: onnx.NodeProto) -> bool:
    if node.domain not in _DOMAINS or node.op_type not in {"MatMul", "Gemm"}:
        return False
    attributes = {item.name: item for item in node.attribute}
    turned = "transA" in attributes and attributes["transA"].i != 0
    biased = len(node.input) > 2 and bool(node.input[2])
    scaled = biased and "beta" in attributes and attributes["beta"].f != 1
    return not turned and not scaled


def _node(
    op: str, inputs: Sequence[str], outputs: Sequence[str], *, domain: str | None = None, **attributes: object
) -> onnx.NodeProto:
    return make_node(op, inputs, outputs, attributes, domain=domain)
