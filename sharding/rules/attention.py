"""Attention of all heads at once, as the standard (opset 23) and ONNX Runtime's own operators have it.

Heads are independent of each other, and so are the rows of a batch; without a causal mask and a cache so are
the queries. Heads that are merged into one hidden axis are cut between heads, and the attributes that count
them are divided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from sharding.onnx_files.attributes import integer, integers
from sharding.rules.base import Dim, Emit, Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import Shape, absent, dim, option, partial_option, shape_of
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import REPLICATED, Placement, Split

_COUNTS = ("num_heads", "q_num_heads", "kv_num_heads")


def divided_counts(node: NodeView, e: Emitter, values: Values) -> list[Value]:
    """The node with the attributes that count heads divided by the number of ranks."""
    changed: dict[str, object] = {  # fewer key/value heads than ranks: one on each
        name: max(1, integer(node.attributes, name) // e.world)
        for name in _COUNTS
        if node.attributes.get(name)
    }
    if sizes := integers(node.attributes, "qkv_hidden_sizes"):
        changed["qkv_hidden_sizes"] = [size // e.world for size in sizes]
    return e.copy(values, **changed)


def copies_of(node: NodeView, heads: Dim, pairs: Dim) -> int | None:
    """With how many copies key/value heads are cut where the query heads are cut over all ranks.

    1 where the ranks divide both; more where the ranks are a multiple of the key/value heads, so that all
    query heads of a rank share one (all ranks hold the only one whole); None where heads cannot be cut so.
    """
    if not node.divisible(heads):
        return None
    if node.divisible(pairs):
        return 1
    short = isinstance(pairs, int) and pairs > 0 and node.world % pairs == 0
    return node.world // pairs if short and isinstance(pairs, int) else None


def shared_heads(node: NodeView, axis: int, copies: int) -> Placement:
    """Where keys or values lie whose heads, along ``axis``, are held with so many copies."""
    return REPLICATED if copies == node.world else Split(axis, copies=copies)


def broadcast_option(  # noqa: PLR0917 - the operand, and where it is cut, then what `option` takes
    node: NodeView,
    parts: Mapping[int, Placement],
    operand: int | None,
    axis: int,
    length: Dim,
    outputs: Sequence[Placement] | Placement,
    emit: Emit | None = None,
) -> list[Option]:
    """The option with these parts and that of an operand which is broadcast to [batch, heads, queries, keys],
    where ``axis`` (from the end), so long, is cut; none where it cannot be told how that goes with it."""
    if operand is not None and not absent(node, operand):
        shape = shape_of(node, operand)
        if shape is None:
            return []
        if len(shape) >= -axis and shape[axis] != 1:
            if shape[axis] != length:
                return []
            parts = {**parts, operand: Split(len(shape) + axis)}
    return [option(node, parts, outputs, emit)]


@rule("Attention")
def attention(node: NodeView) -> list[Option]:
    """Q, K, V as [batch, heads, length, size] or [batch, length, heads * size]; mask; cache."""
    query, key = node.shapes[0], node.shapes[1]
    if query is None or key is None or len(query) not in (3, 4) or len(key) != len(query):
        return []
    four = len(query) == 4
    heads = query[1] if four else integer(node.attributes, "q_num_heads", 0)
    pairs = key[1] if four else integer(node.attributes, "kv_num_heads", 0)
    options: list[Option] = []
    copies = copies_of(node, heads, pairs)
    if copies is not None:
        own, cache = Split(1 if four else 2), shared_heads(node, 1, copies)
        shared = shared_heads(node, own.axis, copies)
        parts = {0: own, 1: shared, 2: shared, 4: cache, 5: cache}
        emit = partial(divided_counts, node) if node.attributes.get("q_num_heads") else None
        options += broadcast_option(node, parts, 3, -3, heads, [own, cache, cache, Split(1)], emit)
    if node.divisible(query[0]):
        rows = dict.fromkeys((0, 1, 2, 4, 5, 6), Split(0))
        options += broadcast_option(node, rows, 3, -4, query[0], Split(0))
    length = query[2 if four else 1]
    causal = node.attributes.get("is_causal", 0) or not absent(node, 4) or not absent(node, 6)
    if node.divisible(length) and not causal:
        own = Split(2 if four else 1)
        outputs: list[Placement] = [own, REPLICATED, REPLICATED, Split(2)]
        options += broadcast_option(node, {0: own}, 3, -2, length, outputs)
    return options


@rule("Attention", domain=MICROSOFT)
def fused_attention(node: NodeView) -> list[Option]:
    """With the projections: weights [input, q + k + v] and bias are cut in three blocks, between heads."""
    return _fused(node, mask=3, past=4, bias=5, per_column=())


@rule("QAttention", domain=MICROSOFT)
def quantized_attention(node: NodeView) -> list[Option]:
    """The same with 8-bit input and weights; the weights' scale and zero point may be one per column."""
    shapes = [shape_of(node, index) for index in (4, 7)]
    if any(shape is not None and len(shape) > 1 for shape in shapes) or shapes[0] is None:
        return []
    if shapes[1] is None and not absent(node, 7):
        return []
    columns = [index for index, shape in zip((4, 7), shapes, strict=True) if shape and shape[0] != 1]
    return _fused(node, mask=5, past=8, bias=None, per_column=columns)


def _fused(
    node: NodeView, *, mask: int, past: int, bias: int | None, per_column: Sequence[int]
) -> list[Option]:
    shape, weights = node.shapes[0], node.shapes[1]
    heads = integer(node.attributes, "num_heads", 0)
    if shape is None or len(shape) != 3 or weights is None or len(weights) != 2:
        return []
    sizes = integers(node.attributes, "qkv_hidden_sizes") or [1, 1, 1]
    options: list[Option] = []
    if node.divisible(heads) and node.divisible(weights[1], 3) and len(set(sizes)) == 1:
        parts = {1: Split(1, 3), past: Split(2), **dict.fromkeys((2, *per_column), Split(0, 3))}
        emit = partial(divided_counts, node)
        options += broadcast_option(node, parts, bias, -3, heads, [Split(2), Split(2)], emit)
    batch = _batch_mask(node, mask, shape[0])
    if node.divisible(shape[0]) and batch is not None:
        rows = {0: Split(0), past: Split(1), **batch}
        options += broadcast_option(node, rows, bias, -4, shape[0], [Split(0), Split(1)])
    return options


def _batch_mask(node: NodeView, index: int, batch: Dim) -> dict[int, Split] | None:
    """How a mask is cut with the batch; None where it cannot be. Ends then starts of rows are two blocks."""
    if absent(node, index):
        return {}
    first = dim(shape_of(node, index), 0)
    if first == batch:
        return {index: Split(0)}
    shape = shape_of(node, index) or ()
    return {index: Split(0, 2)} if len(shape) == 1 and isinstance(batch, int) and first == 2 * batch else None


@rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(node: NodeView) -> list[Option]:
    """Of projected queries, keys and values, or of both or all three packed by head; also cross attention."""
    return _multi_head(node, bias=3, mask=4, added=5, past=6, beams=9)


@rule("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def decoder_masked_attention(node: NodeView) -> list[Option]:
    """The same for one new token, with the cache that it is appended to."""
    return _multi_head(node, bias=10, mask=3, added=4, past=5, beams=9)


def _multi_head(node: NodeView, *, bias: int, mask: int, added: int, past: int, beams: int) -> list[Option]:
    shapes = [shape_of(node, index) for index in range(3)]
    heads = integer(node.attributes, "num_heads", 0)
    query = shapes[0]
    if query is None or any(shape is None and not absent(node, i) for i, shape in enumerate(shapes)):
        return []
    options: list[Option] = []
    widths = [shape[2] for shape in shapes if shape is not None and len(shape) == 3]
    one_width = len(set(widths)) == 1 and isinstance(widths[0], int)
    if node.divisible(heads) and (absent(node, bias) or (one_width and len(query) == 3)):
        # [batch, heads, length, size] has its heads on axis 1, all others on axis 2.
        parts = {i: Split(1 if len(shape or ()) == 4 else 2) for i, shape in enumerate(shapes)}
        parts |= {past: Split(1), past + 1: Split(1), bias: Split(0, 3)}
        outputs = [Split(2), *[Split(1)] * 3]
        options += broadcast_option(node, parts, added, -3, heads, outputs, partial(divided_counts, node))
    batch = _batch_mask(node, mask, query[0])
    if node.divisible(query[0]) and batch is not None:
        rows = {**dict.fromkeys((0, 1, 2, past, past + 1, beams), Split(0)), **batch}
        options += broadcast_option(node, rows, added, -4, query[0], Split(0))
    return options + _queries(node, mask, added, past)


def _queries(node: NodeView, mask: int, added: int, past: int) -> list[Option]:
    """The queries split, keys and values whole: nothing is causal, cached or masked by query."""
    query, masked = node.shapes[0] or (), shape_of(node, mask)
    causal = node.attributes.get("unidirectional", 0) or not absent(node, past)
    separate = len(query) == 3 and not absent(node, 1) and node.op_type == "MultiHeadAttention"
    if causal or not separate or not node.divisible(query[1]):
        return []
    if not absent(node, mask) and (masked is None or len(masked) not in (2, 3)):
        return []
    by_query = (0, mask) if masked is not None and len(masked) == 3 else (0,)
    outputs: list[Placement] = [Split(1), REPLICATED, REPLICATED, Split(2)]
    return broadcast_option(node, dict.fromkeys(by_query, Split(1)), added, -2, query[1], outputs)


@rule("PackedAttention", domain=MICROSOFT)
def packed_attention(node: NodeView) -> list[Option]:
    """As ``fused_attention``, on the tokens of all rows one after the other: [tokens, input]."""
    weights = node.shapes[1]
    heads, sizes = integer(node.attributes, "num_heads", 0), integers(node.attributes, "qkv_hidden_sizes")
    if weights is None or not node.divisible(heads) or not node.divisible(weights[1], 3):
        return []
    parts, emit = {1: Split(1, 3), 2: Split(0, 3)}, partial(divided_counts, node)
    return broadcast_option(node, parts, 5, -3, heads, Split(1), emit) if len(set(sizes or (1,))) == 1 else []


@rule("PackedMultiHeadAttention", domain=MICROSOFT)
def packed_multi_head_attention(node: NodeView) -> list[Option]:
    """The same of projected queries, keys and values [tokens, heads * size], or [tokens, heads, 3, size]."""
    shapes = [shape_of(node, index) for index in range(3)]
    heads = integer(node.attributes, "num_heads", 0)
    if shapes[0] is None or not node.divisible(heads):
        return []
    widths = {shape[1] if shape and len(shape) == 2 else None for shape in shapes}
    if not absent(node, 3) and len(widths) != 1:
        return []
    parts = {0: Split(1), 1: Split(1), 2: Split(1), 3: Split(0, 3)}
    return broadcast_option(node, parts, 6, -3, heads, Split(1), partial(divided_counts, node))


@rule("RotaryEmbedding")
def rotary_embedding(node: NodeView) -> list[Option]:
    """X [batch, heads, length, size] or [batch, length, heads * size]; caches by position or by element."""
    return _rotary(node, caches=(1, 2), positions=3)


@rule("RotaryEmbedding", domain=MICROSOFT)
def microsoft_rotary_embedding(node: NodeView) -> list[Option]:
    """The same with the positions before the caches; one position alone is that of the first element."""
    return _rotary(node, caches=(2, 3), positions=1)


@rule("MRotaryEmbedding", domain=MICROSOFT)
def rotary_embedding_of_several_axes(node: NodeView) -> list[Option]:
    """X as `rotary_embedding` has it, and positions in time, height and width [3, batch, length]."""
    shape, cosines, positions = node.shapes[0], shape_of(node, 2), shape_of(node, 1)
    if shape is None or len(shape) not in (3, 4) or cosines is None or positions is None:
        return []
    if len(positions) != 3 or node.attributes.get("is_packed_batching"):
        return []
    options = partial_option(node)
    length = len(shape) - 2 if len(shape) == 4 else 1
    if _rotary_heads(node, cosines):
        heads = Split(1 if len(shape) == 4 else 2)
        options.append(option(node, {0: heads}, heads, partial(divided_counts, node)))
    for own, axis in ((0, 1), (length, 2)):
        if node.divisible(shape[own]) and positions[axis] == shape[own]:
            options.append(option(node, {0: Split(own), 1: Split(axis)}, Split(own)))
    return options


def _rotary(node: NodeView, *, caches: tuple[int, int], positions: int) -> list[Option]:
    shape, cosines = node.shapes[0], shape_of(node, caches[0])
    if shape is None or len(shape) not in (3, 4) or cosines is None:
        return []
    if node.attributes.get("is_packed_batching"):
        return []
    four = len(shape) == 4
    by_element = list(caches) if len(cosines) == 3 else []
    options = partial_option(node)
    if _rotary_heads(node, cosines):
        heads = Split(1 if four else 2)
        options.append(option(node, {0: heads}, heads, partial(divided_counts, node)))
    given = shape_of(node, positions)
    if not absent(node, positions):
        if given is None or len(given) != 2:
            alone = given is not None and node.divisible(shape[0])
            return options + ([option(node, {0: Split(0)}, Split(0))] if alone else [])
        by_element.append(positions)
    for axis, own in ((0, 0), (1, 2 if four else 1)):
        # Without positions the caches are looked up by place: only their own rows may be cut with X.
        if axis and not by_element:
            continue
        if node.divisible(shape[own]) and all(dim(shape_of(node, i), axis) == shape[own] for i in by_element):
            parts = {0: Split(own), **dict.fromkeys(by_element, Split(axis))}
            options.append(option(node, parts, Split(own)))
    return options


def _rotary_heads(node: NodeView, cosines: Shape) -> bool:
    """Whether the heads divide over the ranks."""
    shape = node.shapes[0] or ()
    if len(shape) == 4:
        return node.divisible(shape[1])
    heads = integer(node.attributes, "num_heads", 0)
    if heads:
        return node.divisible(heads)
    size = cosines[-1]  # half of what is rotated, which then is all of a head
    return (
        isinstance(size, int)
        and not node.attributes.get("rotary_embedding_dim")
        and node.divisible(shape[2], 2 * size)
    )
