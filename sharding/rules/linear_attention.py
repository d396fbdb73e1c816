"""Operators with a recurrent state in place of a cache: linear attention, and the convolution before it.

Channels and heads are independent of each other, and so are the rows of a batch; the state goes with both.
"""

from __future__ import annotations

from functools import partial

from sharding.onnx_files.attributes import integer
from sharding.rules.attention import divided_counts
from sharding.rules.base import NodeView, Option, rule
from sharding.rules.common import absent, dim, option, shape_of, splits
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import Split


@rule("CausalConvWithState", domain=MICROSOFT)
def causal_convolution(node: NodeView) -> list[Option]:
    """X [batch, channels, length] or [batch, length, channels...], a kernel for each channel, bias, state."""
    shape, last = node.shapes[0], bool(node.attributes.get("channels_last", 0))
    if shape is None or len(shape) < 3 or (len(shape) > 3 and not last) or _has_window(node):
        return []
    axis = 2 if last else 1
    options = []
    for split in splits(node, shape, (0,) if len(shape) > 3 else (0, axis)):
        per_channel = dict.fromkeys((1, 2) if split.axis == axis else (), Split(0, split.blocks))
        options.append(option(node, {0: split, 3: split, **per_channel}, split))
    return options


def _has_window(node: NodeView) -> bool:
    """Whether the states of several last positions are kept, not that of the last one alone."""
    return integer(node.attributes, "state_window", 0) > 0


@rule("LinearAttention", domain=MICROSOFT)
def linear_attention(node: NodeView) -> list[Option]:
    """Queries, keys, values [batch, length, heads * size]; state, decay and rate for each key/value head."""
    query = node.shapes[0]
    if query is None or len(query) != 3 or _has_window(node):
        return []
    heads, pairs = (integer(node.attributes, name, 0) for name in ("q_num_heads", "kv_num_heads"))
    options = []
    known = absent(node, 5) or isinstance(dim(shape_of(node, 5), 2), int)
    if known and node.divisible(heads) and node.divisible(pairs):
        own, state = Split(2), Split(1)
        parts = dict.fromkeys((0, 1, 2, 4, *((5,) if dim(shape_of(node, 5), 2) != 1 else ())), own)
        emit = partial(divided_counts, node)
        options.append(option(node, {**parts, 3: state}, [own, state], emit))
    if node.divisible(query[0]):
        options.append(option(node, dict.fromkeys(range(6), Split(0)), Split(0)))
    return options


@rule("LinearAttentionGate", domain=MICROSOFT)
def linear_attention_gate(node: NodeView) -> list[Option]:
    """What makes decays, and rates where they are given, [batch, length, heads]; a bias and a scale for each
    head."""
    shape, options = node.shapes[0], []
    if shape is None or len(shape) != 3 or (shape_of(node, 3) not in (None, shape)):
        return []
    for split in splits(node, shape):
        per_head = dict.fromkeys((1, 2) if split.axis == 2 else (), Split(0, split.blocks))
        options.append(option(node, {0: split, 3: split, **per_head}, split))
    return options


@rule("GatedRMSNorm", domain=MICROSOFT)
def gated_norm(node: NodeView) -> list[Option]:
    """Values and gates [..., heads * size], normalised head by head, each as long as the weights [size]."""
    shape, size = node.shapes[0], dim(shape_of(node, 1), 0)
    if shape is None or len(shape) < 2 or shape_of(node, 2) != shape or not isinstance(size, int):
        return []
    last = len(shape) - 1
    kept = list(splits(node, shape, range(last)))
    if node.divisible(shape[last], size):
        kept.append(Split(last))
    return [option(node, {0: split, 2: split}, split) for split in kept]
