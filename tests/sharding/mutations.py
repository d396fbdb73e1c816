"""Models that somebody damaged: random changes of their bytes and of the fields of their messages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import onnx

from tests.sharding import graphs
from tests.sharding.reading.test_control_flow import KNOWN_IF, NESTED, UNKNOWN_IF

NUMBERS = (0, 1, -1, 2, 3, 7, 14, 99, 127, 255, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), -5)
TEXTS = (
    "",
    "x",
    "y",
    "w",
    "w1",
    "a",
    "t",
    "ai.onnx",
    "com.microsoft",
    "own",
    "If",
    "Loop",
    "MatMul",
    "Reshape",
)
TEXTS += (
    "AllReduce",
    "Constant",
    "ConstantOfShape",
    "inner",
    "outer",
    "../x",
    "/etc/passwd",
    "\x00",
    "é" * 300,
)
TEXTS += (
    "location",
    "offset",
    "length",
    "shardrun/constant",
    "x/split:0",
    "n",
    "then_branch",
    "-1",
    "9" * 25,
)

SHAPES = """
g (float[n, 6, 16] x) => (float[n, p, q, r] y) {
  s = Shape(x)
  i = Constant<value = int64 {0}>()
  b = Gather<axis = 0>(s, i)
  z = Constant<value_ints = [0]>()
  u = Unsqueeze(b, z)
  c = Constant<value_ints = [-1, 4, 4]>()
  t = Concat<axis = 0>(u, c)
  m = MatMul(x, w)
  h = LayerNormalization<axis = -1>(m, w1)
  r = Reshape(h, t)
  y = Transpose<perm = [0, 2, 1, 3]>(r)
}
"""
IMAGES = """
g (float[n, 4, 8, 8] x) => (float[n, 8] y, float[n, 8, 4, 4] p) {
  c = Conv<pads = [1, 1, 1, 1], kernel_shape = [3, 3], group = 2>(x, w)
  b = Relu(c)
  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(b)
  g = GlobalAveragePool(p)
  shape = Constant<value_ints = [0, -1]>()
  f = Reshape(g, shape)
  parts = Constant<value_ints = [4, 4]>()
  l, r = Split<axis = 1>(f, parts)
  j = Concat<axis = 1>(r, l)
  y = Softmax<axis = -1>(j)
}
"""


def seeds() -> list[onnx.ModelProto]:
    """Small models of many kinds: weights inside and outside, bodies, functions, shape arithmetic."""
    header = '<ir_version: 11, opset_import: ["" : 18, "own" : 1]>\n'
    models = [onnx.parser.parse_model(header + text) for text in (KNOWN_IF, NESTED, UNKNOWN_IF)]
    for text, weights in (
        (graphs.MLP, graphs.mlp_weights()),
        (SHAPES, {"w": graphs.array(16, 16), "w1": graphs.array(16)}),
        (IMAGES, {"w": graphs.array(8, 2, 3, 3)}),
    ):
        model = onnx.parser.parse_model(header + text)
        model.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in weights.items())
        models.append(model)
    outside = onnx.ModelProto()
    outside.CopyFrom(models[3])
    for tensor in outside.graph.initializer[:2]:
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.data")
    models.append(outside)
    sparse = onnx.ModelProto()
    sparse.CopyFrom(models[3])
    item = sparse.graph.sparse_initializer.add(dims=[32, 8])
    item.values.CopyFrom(onnx.numpy_helper.from_array(graphs.array(2), "w2"))
    item.indices.CopyFrom(onnx.numpy_helper.from_array(graphs.np.asarray([1, 30]), "places"))
    del sparse.graph.initializer[2]
    models.append(sparse)
    return [*models, *_annotated(models[3])]


def _annotated(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """The model with multi-device annotations, where the installed onnx has these messages."""
    if not hasattr(onnx.NodeProto(), "device_configurations"):
        return
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    marked.configuration.add(name="two", num_devices=2, device=["a", "b"])
    for node in marked.graph.node:
        item = node.device_configurations.add(configuration_id="two", pipeline_stage=0)
        spec = item.sharding_spec.add(tensor_name=node.input[1] if len(node.input) > 1 else node.output[0])
        spec.device.extend([0, 1])
        dim = spec.sharded_dim.add(axis=0)
        dim.simple_sharding.add(num_shards=2)
    yield marked


def damage_bytes(content: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, removed, doubled or cut off."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 5)):
        place = chance.randrange(len(data)) if data else 0
        match chance.randrange(5):
            case 0:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[place : place + chance.randint(1, 20)]
            case 2:
                data[place:place] = data[place : place + chance.randint(1, 40)]
            case 3:
                data[place:place] = bytes(chance.choice((0x80, 0xFF)) for _ in range(chance.randint(1, 12)))
            case _:
                if chance.random() < 0.3:
                    del data[place:]
    return bytes(data)


def damage_message(model: onnx.ModelProto, chance: random.Random) -> onnx.ModelProto:
    """Some fields changed, removed, doubled, or taken from elsewhere in the message."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for _ in range(chance.randint(1, 4)):
        messages = list(_messages(changed, 0))
        _damage_field(chance.choice(messages), messages, chance)
    return changed


def _messages(message: Any, depth: int) -> Iterator[Any]:
    yield message
    if depth > 12:
        return
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        for item in value if hasattr(value, "append") or hasattr(value, "add") else [value]:
            yield from _messages(item, depth + 1)


def _damage_field(message: Any, messages: list[Any], chance: random.Random) -> None:
    fields = message.DESCRIPTOR.fields
    present = [field for field, _ in message.ListFields()]
    field = chance.choice(present if present and chance.random() < 0.8 else list(fields))
    value = getattr(message, field.name)
    try:
        if hasattr(value, "extend"):
            _damage_list(field, value, messages, chance)
        elif field.type == field.TYPE_MESSAGE:
            _damage_child(message, field, messages, chance)
        elif chance.random() < 0.15:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, _scalar(field, value, chance))
    except (ValueError, TypeError, OverflowError):  # what the message cannot hold
        message.ClearField(field.name)


def _damage_list(field: Any, value: Any, messages: list[Any], chance: random.Random) -> None:
    way, place = chance.randrange(4), chance.randrange(len(value)) if value else 0
    if way == 0 and value:
        del value[place]
    elif way == 1 and len(value) > 1:
        items = list(value)
        chance.shuffle(items)
        kept = [
            type(item).FromString(item.SerializeToString()) if _is_message(item) else item for item in items
        ]
        del value[:]
        value.extend(kept)
    elif field.type == field.TYPE_MESSAGE:
        same = [item for item in messages if item.DESCRIPTOR is field.message_type]
        if same:
            source = chance.choice(same)
            value.append(type(source).FromString(source.SerializeToString()))
        else:
            value.add()
    elif way == 2 and value:
        value[place] = _scalar(field, value[place], chance)
    else:
        value.append(_scalar(field, value[place] if value else None, chance))


def _damage_child(message: Any, field: Any, messages: list[Any], chance: random.Random) -> None:
    same = [item for item in messages if item.DESCRIPTOR is field.message_type]
    if not same or chance.random() < 0.4:
        message.ClearField(field.name)
        return
    content = chance.choice(same).SerializeToString()
    getattr(message, field.name).ParseFromString(content)


def _is_message(item: Any) -> bool:
    return hasattr(item, "SerializeToString")


def _scalar(field: Any, value: Any, chance: random.Random) -> Any:
    if field.type == field.TYPE_STRING:
        return chance.choice(TEXTS)
    if field.type == field.TYPE_BYTES:
        return damage_bytes(bytes(value or b"abc"), chance) if chance.random() < 0.7 else b""
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return chance.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    if field.type == field.TYPE_ENUM:
        return chance.choice([item.number for item in field.enum_type.values])
    if isinstance(value, int) and chance.random() < 0.4:
        return value + chance.choice((-1, 1, 2, 16))
    return chance.choice(NUMBERS)
