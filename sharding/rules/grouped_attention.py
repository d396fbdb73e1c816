"""Attention whose query heads share, by groups, a key and a value head; with rotary embedding and caches.

Each rank has some groups. Where key/value heads are fewer than ranks, neighbouring ranks hold the same one.
"""

from __future__ import annotations

from functools import partial

from sharding.onnx_files.attributes import integer
from sharding.rules.attention import broadcast_option, copies_of, divided_counts, shared_heads
from sharding.rules.base import Emit, Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import Shape, absent, dim, int64, option, shape_of
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import REPLICATED, Placement, Split


@rule("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(node: NodeView) -> list[Option]:
    """Groups of query heads share a key and a value head; with a cache, rotary embedding, all in one.

    Caches of few bits have one scale for all, or one per key/value head and element. What normalizes heads
    (14, 15) is as long as a head.
    """
    query = node.shapes[0]
    if query is None or len(query) != 3:
        return []
    heads = _heads(node, query)
    positions = dim(shape_of(node, 9), 0)
    if node.divisible(query[0]) and (absent(node, 9) or positions == query[0]):
        rows = dict.fromkeys((0, 1, 2, 3, 4, 5, 9), Split(0))
        return heads + broadcast_option(node, rows, 10, -4, query[0], Split(0))
    return heads


def _heads(node: NodeView, query: Shape) -> list[Option]:
    """Heads split, queries, keys and values by themselves or packed in the first input."""
    packed = absent(node, 1)
    heads, pairs = (integer(node.attributes, name, 0) for name in ("num_heads", "kv_num_heads"))
    copies = copies_of(node, heads, pairs)
    if copies is None or (not packed and shape_of(node, 1) is None):
        return []
    cache = shared_heads(node, 1, copies)
    parts: dict[int, Placement] = {3: cache, 4: cache, 11: Split(0)}
    for index in (12, 13):
        where = _scale_part(node, index, pairs, copies)
        if where is None:
            return []
        parts[index] = where
    emit: Emit | None = partial(divided_counts, node)
    if not packed:
        parts |= {0: Split(2), **dict.fromkeys((1, 2), shared_heads(node, 2, copies))}
    else:
        width = query[2]
        if not isinstance(width, int) or width % (heads + 2 * pairs):
            return []
        if heads == pairs:
            parts[0] = Split(2, 3)
        else:
            emit = partial(_unpacked, node, copies)
    return broadcast_option(node, parts, 10, -3, heads, [Split(2), cache, cache, Split(1)], emit)


def _scale_part(node: NodeView, index: int, pairs: int, copies: int) -> Placement | None:
    """How the scale of a cache goes with its heads: one number, or [heads, 1, size]; None where unknown."""
    if absent(node, index):
        return REPLICATED
    shape = shape_of(node, index)
    if shape is None:
        return None
    if all(length == 1 for length in shape):
        return REPLICATED
    return shared_heads(node, 0, copies) if len(shape) > 1 and shape[0] == pairs else None


def _unpacked(node: NodeView, copies: int, e: Emitter, values: Values) -> list[Value]:
    """Takes this rank's heads out of the packed queries, keys and values, which are unequally many."""
    heads, pairs = (integer(node.attributes, name) for name in ("num_heads", "kv_num_heads"))
    size = int((node.shapes[0] or ())[2] or 0) // (heads + 2 * pairs)
    taken, start = [], 0
    for count, times in ((heads, 1), (pairs, copies), (pairs, copies)):
        width = count * size * times // e.world
        first = start + e.rank // times * width
        bounds = [int64(e, [bound]) for bound in (first, first + width, 2)]
        taken += e.op("Slice", [values[0], *bounds])
        start += count * size
    return divided_counts(node, e, [*taken, *values[3:]])


@rule("SparseAttention", domain=MICROSOFT)
def sparse_attention(node: NodeView) -> list[Option]:
    """Groups of query heads share a key and a value head, and see blocks of positions only.

    Head h has the layout h % layouts of those that two inputs list, [layouts, ...].
    """
    query = node.shapes[0]
    if query is None or len(query) != 3:
        return []
    options = []
    heads, pairs = (integer(node.attributes, name, 0) for name in ("num_heads", "kv_num_heads"))
    copies, layouts = copies_of(node, heads, pairs), _layouts(node, heads)
    if copies is not None and layouts is not None:
        cache = shared_heads(node, 1, copies)
        parts = {3: cache, 4: cache, 5: layouts, 6: layouts}
        emit: Emit = partial(_unpacked, node, copies)
        if not absent(node, 1):
            parts |= {0: Split(2), **dict.fromkeys((1, 2), shared_heads(node, 2, copies))}
            emit = partial(divided_counts, node)
        if not absent(node, 1) or isinstance(query[2], int):
            options.append(option(node, parts, [Split(2), cache, cache], emit))
    if node.divisible(query[0]):
        options.append(option(node, dict.fromkeys((0, 1, 2, 3, 4, 8), Split(0)), Split(0)))
    return options


def _layouts(node: NodeView, heads: int) -> Placement | None:
    """How the layouts of heads go with them; None where a rank's heads would have others."""
    count = dim(shape_of(node, 5), 0)
    if not isinstance(count, int) or count < 1:
        return None
    if heads // node.world % count == 0:
        return REPLICATED
    return Split(0) if count == heads else None
