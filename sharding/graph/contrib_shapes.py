"""Types and shapes of what ONNX Runtime's own operators give, which onnx's shape inference does not know.

The signatures are those of https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharding.graph import equivalents
from sharding.graph.equivalents import FLOAT, INT32, UINT8
from sharding.graph.values import plain_attribute, shape_of
from sharding.onnx_files.attributes import integer, integers
from sharding.rules.base import GIVES, Dim
from sharding.rules.contrib import first_before_last
from sharding.slices.domains import MICROSOFT

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

Shape = tuple[Dim, ...]
Found = Sequence[tuple[int | None, Shape | None]]
"""(element type, shape) of each output, from the first on."""


@dataclass(frozen=True)
class _Node:
    attributes: Mapping[str, object]
    types: Sequence[int | None]
    shapes: Sequence[Shape | None]

    def shape(self, index: int) -> Shape | None:
        return self.shapes[index] if index < len(self.shapes) else None

    def type(self, index: int) -> int | None:
        return self.types[index] if index < len(self.types) else None

    def dim(self, index: int, axis: int) -> Dim:
        shape = self.shape(index)
        return None if shape is None or not -len(shape) <= axis < len(shape) else shape[axis]

    def number(self, name: str, default: int = 0) -> int:
        return integer(self.attributes, name, default)


def infer(node: ir.Node) -> dict[str, onnx.TypeProto] | None:
    """The types of a node's outputs by name; None if it is not one of these operators."""
    import onnx

    key = (node.domain, node.op_type)
    function = _INFER.get(key) or (_as_inputs(GIVES[key]) if key in GIVES else None)
    if function is None:
        return equivalents.infer(node)
    described = _Node(
        {name: plain_attribute(item) for name, item in node.attributes.items() if not item.is_ref()},
        [None if value is None or value.dtype is None else int(value.dtype) for value in node.inputs],
        [shape_of(value) for value in node.inputs],
    )
    found = {}
    try:
        outputs = function(described)
    except (OverflowError, MemoryError):  # an axis far beyond any shape: an invalid node
        return {}
    for value, (kind, shape) in zip(node.outputs, outputs, strict=False):
        if value.name and kind is not None:
            found[value.name] = onnx.helper.make_tensor_type_proto(kind, shape)
    return found


def _as_inputs(given: Sequence[int]) -> Callable[[_Node], Found]:
    return lambda node: [(node.type(index), node.shape(index)) for index in given]


def _normalized(node: _Node) -> Found:
    """Output, then mean and inverse deviation, then the sum of the inputs where there is a skip."""
    shape = node.shape(0)
    moment = None if shape is None else (*shape[:-1], 1)
    return [(node.type(0), shape), (FLOAT, moment), (FLOAT, moment), (node.type(0), shape)]


def _layer_normalized(node: _Node) -> Found:
    """ONNX Runtime has the operator in the standard domain of every version, the standard only from 17 on.
    What it gives is of the scale's type."""
    shape = node.shape(0)
    if shape is None:
        return [(node.type(1), None)]
    axis = node.number("axis", -1)
    axis += len(shape) if axis < 0 else 0
    moment = (*shape[:axis], *(1,) * (len(shape) - axis))
    return [(node.type(1), shape), (FLOAT, moment), (FLOAT, moment)]


def _rms(node: _Node) -> Found:
    """What it gives is of the scale's type."""
    (_, shape), moment, *_ = _normalized(node)
    return [(node.type(1), shape), moment]


def _embedding(node: _Node) -> Found:
    ids = node.shape(0)
    shape = None if ids is None else (*ids, node.dim(2, 1))
    return [
        (node.type(2), shape),
        (INT32, None if ids is None else (ids[0],)),
        (node.type(2), shape),
    ]


def _columns(width: Callable[[_Node], Dim], kind: int = 0) -> Callable[[_Node], Found]:
    """The first input with another last axis, of the type of input ``kind`` (negative: float)."""

    def found(node: _Node) -> Found:
        shape = node.shape(0)
        return [
            (FLOAT if kind < 0 else node.type(kind), None if shape is None else (*shape[:-1], width(node)))
        ]

    return found


def _fused_matmul(node: _Node) -> Found:
    a, b = node.shape(0), node.shape(1)
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return [(node.type(0), None)]
    if node.number("transBatchA") or node.number("transBatchB"):
        if len(a) != len(b) or len(a) < 3:
            return [(node.type(0), None)]
        a = first_before_last(a) if node.number("transBatchA") else a
        b = first_before_last(b) if node.number("transBatchB") else b
    rows = a[-1] if node.number("transA") else a[-2]
    columns = b[-2] if node.number("transB") else b[-1]
    return [(node.type(0), (*_broadcast(a[:-2], b[:-2]), rows, columns))]


def _broadcast(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    return tuple(y if x == 1 or (isinstance(y, int) and y != 1) else x for x, y in pairs)


def _gemm(node: _Node) -> Found:
    rows = node.dim(0, 1 if node.number("transA") else 0)
    return [(node.type(0), (rows, node.dim(1, 0 if node.number("transB") else 1)))]


def _sum(a: Dim, b: Dim) -> Dim:
    return a + b if isinstance(a, int) and isinstance(b, int) else None


def _attention(node: _Node, past: int = 4, weights: int = 1) -> Found:
    """Attention with fused projections: the output is as wide as V; present is past plus the sequence."""
    shape, columns = node.shape(0), node.dim(weights, -1)
    sizes = integers(node.attributes, "qkv_hidden_sizes")
    width = sizes[2] if sizes else columns // 3 if isinstance(columns, int) else None
    heads = node.number("num_heads", 1)
    head = width // heads if isinstance(width, int) and heads else None
    length = node.dim(past, 3)
    if not node.number("past_present_share_buffer"):
        length = _sum(length, node.dim(0, 1))
    present = (2, node.dim(0, 0), heads, length, head)
    return [(node.type(0), None if shape is None else (*shape[:-1], width)), (node.type(0), present)]


def _multi_head(node: _Node, past: int = 6) -> Found:
    """Query [B, S, heads * size], packed as [B, S, heads, 3, size], or with keys [B, L, heads, 2, size]."""
    query, key, value = node.shape(0), node.shape(1), node.shape(2)
    heads = node.number("num_heads", 1)
    if query is None:
        return [(node.type(0), None)]
    if len(query) == 5:
        width: Dim = heads * query[4] if isinstance(query[4], int) else None
    elif key is not None and len(key) == 5:
        width = heads * key[4] if isinstance(key[4], int) else None
    elif value is not None and len(value) == 4:
        width = heads * value[3] if isinstance(value[3], int) else None
    elif value is not None and len(value) == 3:
        width = value[2]
    else:
        width = query[-1]
    head = width // heads if isinstance(width, int) and heads else None
    keys = query[1] if key is None else key[2] if len(key) == 4 else key[1]
    if node.shape(past) is not None:
        share = node.number("past_present_share_buffer")
        keys = node.dim(past, 2) if share else _sum(node.dim(past, 2), keys)
    query_head = query[2] // heads if len(query) == 3 and isinstance(query[2], int) and heads else head
    kind = node.type(0)
    return [
        (kind, (query[0], query[1], width)),
        (kind, (query[0], heads, keys, query_head)),
        (kind, (query[0], heads, keys, head)),
    ]


def _group_query(node: _Node) -> Found:
    query = node.shape(0)
    heads, pairs = node.number("num_heads", 1), node.number("kv_num_heads", 1)
    if query is None or len(query) != 3:
        return [(node.type(0), None)]
    width = query[2]
    if node.shape(1) is None and isinstance(width, int) and heads + 2 * pairs:
        width = width // (heads + 2 * pairs) * heads
    head = width // heads if isinstance(width, int) and heads else None
    packed = node.number("kv_cache_bit_width") == 4  # two numbers lie in one byte
    caches = [
        (
            node.type(index) if node.type(index) is not None else node.type(0),
            (query[0], pairs, None, node.dim(index, -1) if packed else head),
        )
        for index in (3, 4)
    ]
    return [(node.type(0), (query[0], query[1], width)), *caches]


def _sparse_attention(node: _Node) -> Found:
    """The caches are buffers of fixed length, which stay what they are."""
    return [_group_query(node)[0], *((node.type(index), node.shape(index)) for index in (3, 4))]


def _causal_convolution(node: _Node) -> Found:
    """The state is as that of before, or the last positions that a kernel [channels, 1, k] looks back to."""
    past, kernel = node.shape(3), node.dim(1, -1)
    if past is None and not node.number("state_window") and not node.number("channels_last"):
        back = (kernel - 1) * node.number("dilation", 1) if isinstance(kernel, int) else None
        past = (node.dim(0, 0), node.dim(0, 1), back) if len(node.shape(0) or ()) == 3 else None
    return [(node.type(0), node.shape(0)), (node.type(0), past)]


def _linear_attention(node: _Node) -> Found:
    heads, pairs = node.number("q_num_heads", 1), node.number("kv_num_heads", 1)
    key, value = (
        width // pairs if isinstance(width := node.dim(index, -1), int) and pairs > 0 else None
        for index in (1, 2)
    )
    query, past = node.shape(0), node.shape(3)
    if past is None and not node.number("state_window"):
        past = (node.dim(0, 0), pairs, key, value)
    width = max(heads, pairs) * value if value is not None else None
    kind = node.type(3) if node.type(3) is not None else node.type(0)
    return [(node.type(0), None if query is None else (*query[:-1], width)), (kind, past)]


def _half(node: _Node) -> Dim:
    width = node.dim(0, -1)
    return width // 2 if isinstance(width, int) else None


def _gather_block(node: _Node) -> Found:
    """The dequantized rows: two 4-bit numbers share a byte of an 8-bit table."""
    table, indices = node.shape(0), node.shape(1)
    if table is None or indices is None or not table:
        return [(node.type(2), None)]
    axis = node.number("gather_axis") % len(table)
    lengths = list(table)
    blocked = node.number("quantize_axis", 1) % len(table)
    length = lengths[blocked]
    if node.type(0) == UINT8 and node.number("bits", 4) == 4:
        lengths[blocked] = 2 * length if isinstance(length, int) else None
    return [(node.type(2), (*lengths[:axis], *indices, *lengths[axis + 1 :]))]


_SAME = (
    *("Gelu", "QuickGelu", "FastGelu", "BiasGelu", "BiasAdd", "BiasSoftmax", "RotaryEmbedding", "Inverse"),
    *("MoE", "QMoE", "GroupNorm", "MRotaryEmbedding", "GatedRMSNorm"),
)
_INFER: dict[tuple[str, str], Callable[[_Node], Found]] = {
    **{(MICROSOFT, name): _as_inputs([0]) for name in _SAME},
    (MICROSOFT, "SkipLayerNormalization"): _normalized,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _normalized,
    ("", "SimplifiedLayerNormalization"): _rms,
    ("", "LayerNormalization"): _layer_normalized,
    # Functions of the standard, whose nodes onnx's inference leaves open.
    ("", "GroupNormalization"): _as_inputs([0]),
    ("", "MeanVarianceNormalization"): _as_inputs([0]),
    (MICROSOFT, "EmbedLayerNormalization"): _embedding,
    (MICROSOFT, "FusedMatMul"): _fused_matmul,
    (MICROSOFT, "TransposeMatMul"): _fused_matmul,
    (MICROSOFT, "FusedMatMulActivation"): _fused_matmul,
    (MICROSOFT, "FusedGemm"): _gemm,
    (MICROSOFT, "GemmFastGelu"): _columns(lambda node: node.dim(1, 1)),
    (MICROSOFT, "MatMulNBits"): _columns(lambda node: node.number("N")),
    (MICROSOFT, "MatMulBnb4"): _columns(lambda node: node.number("N")),
    (MICROSOFT, "DynamicQuantizeMatMul"): _columns(lambda node: node.dim(1, -1)),
    (MICROSOFT, "MatMulIntegerToFloat"): _columns(lambda node: node.dim(1, -1), 2),
    (MICROSOFT, "BiasSplitGelu"): _columns(_half),
    (MICROSOFT, "Attention"): _attention,
    (MICROSOFT, "QAttention"): lambda node: [(node.type(3), shape) for _, shape in _attention(node, 8)],
    (MICROSOFT, "PackedAttention"): lambda node: [_attention(node)[0]],
    (MICROSOFT, "MultiHeadAttention"): _multi_head,
    (MICROSOFT, "DecoderMaskedMultiHeadAttention"): lambda node: _multi_head(node, 5),
    (MICROSOFT, "GroupQueryAttention"): _group_query,
    (MICROSOFT, "SparseAttention"): _sparse_attention,
    (MICROSOFT, "DequantizeLinear"): lambda node: [(node.type(1), node.shape(0))],
    (MICROSOFT, "GatherBlockQuantized"): _gather_block,
    (MICROSOFT, "CausalConvWithState"): _causal_convolution,
    (MICROSOFT, "LinearAttention"): _linear_attention,
    (MICROSOFT, "LinearAttentionGate"): _as_inputs([0, 0]),
}
"""By domain and operator."""
