"""Transformers in ONNX Runtime's fused operators and with 4-bit weights, against plain ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sharding
from sharding.demands.options import SliceOptions
from tests.releases import INSTALLED
from tests.sharding import lockstep

pytestmark = pytest.mark.usefixtures("read_once")

MICROSOFT = "com.microsoft"
LAYERS, HEADS, PAIRS, SIZE, INNER, VOCABULARY, PLACES = 2, 8, 4, 16, 192, 120, 40
WIDTH = HEADS * SIZE
Feeds = dict[str, np.ndarray[Any, Any]]


class Net:
    """A graph that grows node by node, with random weights."""

    def __init__(self, opset: int = 17) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.opset = opset
        self.random = np.random.default_rng(11)

    def weight(self, *shape: int, scale: float | None = None) -> str:
        spread = 1 / np.sqrt(shape[0]) if scale is None else scale
        value = (self.random.standard_normal(shape) * spread).astype(np.float32)
        return self.constant(value)

    def constant(self, value: np.ndarray[Any, Any]) -> str:
        self.weights.append(numpy_helper.from_array(value, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def input(self, name: str, kind: int, *shape: int | str) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def op(
        self, op_type: str, *inputs: str, domain: str = MICROSOFT, outputs: int = 1, **attributes: Any
    ) -> Any:
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def output(self, value: str, name: str, kind: int, *shape: int | str) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def linear(self, x: str, rows: int, columns: int) -> str:
        return str(self.op("MatMul", x, self.weight(rows, columns), domain=""))

    def save(self, path: Path) -> Path:
        graph = helper.make_graph(self.nodes, "net", self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
        return path


def _bert(path: Path) -> Path:
    """As exported by torch and then fused by ``onnxruntime.transformers.optimizer``."""
    torch = pytest.importorskip("torch", reason="torch exports the model; requirements-models.txt has it")
    transformers = pytest.importorskip("transformers", reason="transformers defines the model")
    from onnxruntime.transformers import optimizer

    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
        max_position_embeddings=PLACES,
        initializer_range=0.1,
    )
    config._attn_implementation = "eager"
    bert = transformers.BertModel(config, add_pooling_layer=False).eval()

    class Encoder(torch.nn.Module):  # type: ignore[misc, name-defined]  # imported only here
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, ids: Any, mask: Any, kinds: Any) -> Any:
            return self.bert(input_ids=ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state

    ids = torch.ones((2, 7), dtype=torch.int64)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "batch", 1: "sequence"} for name in (*names, "y")}
    torch.onnx.export(
        Encoder(),
        (ids, ids, ids * 0),
        str(path),
        input_names=names,
        output_names=["y"],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )
    fused = optimizer.optimize_model(
        str(path), model_type="bert", num_heads=HEADS, hidden_size=WIDTH, opt_level=0
    )
    fused.save_model_to_file(str(path))
    return path


def _bert_feeds(batch: int, sequence: int) -> Feeds:
    random = np.random.default_rng([batch, sequence])
    mask = np.ones((batch, sequence), np.int64)
    mask[-1, sequence - 2 :] = 0
    return {
        "input_ids": random.integers(0, VOCABULARY, (batch, sequence)),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, 2, (batch, sequence)),
    }


def _gpt2(path: Path) -> Path:
    """Attention with a cache in one tensor, biases inside the normalizations, FastGelu with its bias."""
    net = Net()
    ids = net.input("input_ids", TensorProto.INT32, "batch", "sequence")
    places = net.input("position_ids", TensorProto.INT32, "batch", "sequence")
    ones, zeros = net.constant(np.ones(WIDTH, np.float32)), net.constant(np.zeros(WIDTH, np.float32))
    words, positions = net.weight(VOCABULARY, WIDTH, scale=0.5), net.weight(PLACES, WIDTH, scale=0.5)
    x, _, total = net.op(
        "EmbedLayerNormalization", ids, "", words, positions, "", ones, zeros, "", places, outputs=3
    )
    for layer in range(LAYERS):
        past = net.input(f"past_{layer}", TensorProto.FLOAT, 2, "batch", HEADS, "past", SIZE)
        packed, bias = net.weight(WIDTH, 3 * WIDTH), net.weight(3 * WIDTH, scale=0.1)
        mixed, present = net.op(
            "Attention", x, packed, bias, "", past, num_heads=HEADS, unidirectional=1, outputs=2
        )
        net.output(present, f"present_{layer}", TensorProto.FLOAT, 2, "batch", HEADS, "total", SIZE)
        y = net.linear(mixed, WIDTH, WIDTH)
        bias = net.weight(WIDTH, scale=0.1)
        x, _, _, total = net.op("SkipLayerNormalization", total, y, ones, zeros, bias, outputs=4)
        y = net.op("FastGelu", net.linear(x, WIDTH, INNER), net.weight(INNER, scale=0.1))
        y = net.linear(y, INNER, WIDTH)
        bias = net.weight(WIDTH, scale=0.1)
        x, _, _, total = net.op("SkipLayerNormalization", total, y, ones, zeros, bias, outputs=4)
    net.output(x, "y", TensorProto.FLOAT, "batch", "sequence", WIDTH)
    return net.save(path)


def _gpt2_feeds(batch: int, sequence: int) -> Feeds:
    random = np.random.default_rng([batch, sequence])
    past = 3
    shape = (2, batch, HEADS, past, SIZE)
    return {
        "input_ids": random.integers(0, VOCABULARY, (batch, sequence)).astype(np.int32),
        "position_ids": np.tile(np.arange(past, past + sequence, dtype=np.int32), (batch, 1)),
        **{f"past_{i}": random.standard_normal(shape).astype(np.float32) for i in range(LAYERS)},
    }


def _llama(path: Path, *, packed: bool = False, outside: bool = False) -> Path:
    """GroupQueryAttention with a cache; rotary embedding in it or ``outside``, weights ``packed`` or not."""
    net = Net()
    ids = net.input("input_ids", TensorProto.INT64, "batch", "sequence")
    lengths = net.input("lengths", TensorProto.INT32, "batch")
    total_length = net.input("total_length", TensorProto.INT32)
    places = net.input("position_ids", TensorProto.INT64, "batch", "sequence") if outside else ""
    angles = np.arange(PLACES)[:, None] / 100 ** (np.arange(SIZE // 2)[None] / (SIZE // 2))
    tables = [net.constant(table.astype(np.float32)) for table in (np.cos(angles), np.sin(angles))]
    total = net.op("Gather", net.weight(VOCABULARY, WIDTH, scale=0.5), ids, domain="")
    ones = net.constant(np.ones(WIDTH, np.float32))
    x = net.op("SimplifiedLayerNormalization", total, ones, domain="", axis=-1, epsilon=1e-5)
    counts: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": PAIRS}
    for layer in range(LAYERS):
        cache = (TensorProto.FLOAT, "batch", PAIRS, "past", SIZE)
        past = [net.input(f"past_{layer}_{kind}", *cache) for kind in ("key", "value")]
        if packed:
            projected = [net.linear(x, WIDTH, WIDTH + 2 * PAIRS * SIZE), "", ""]
        else:
            projected = [net.linear(x, WIDTH, count * SIZE) for count in (HEADS, PAIRS, PAIRS)]
        inside = tables
        if outside:
            inside = []
            for i, count in ((0, HEADS), (1, PAIRS)):
                projected[i] = net.op("RotaryEmbedding", projected[i], places, *tables, num_heads=count)
        mixed, *present = net.op(
            "GroupQueryAttention",
            *projected,
            *past,
            lengths,
            total_length,
            *inside,
            outputs=3,
            do_rotary=0 if outside else 1,
            **counts,
        )
        for kind, value in zip(("key", "value"), present, strict=True):
            net.output(value, f"present_{layer}_{kind}", TensorProto.FLOAT, "batch", PAIRS, "total", SIZE)
        y = net.linear(mixed, WIDTH, WIDTH)
        x, _, _, total = net.op("SkipSimplifiedLayerNormalization", total, y, ones, outputs=4)
        gate, up = net.linear(x, WIDTH, INNER), net.linear(x, WIDTH, INNER)
        gate = net.op("QuickGelu", gate, alpha=1.0)
        y = net.linear(net.op("Mul", gate, up, domain=""), INNER, WIDTH)
        x, _, _, total = net.op("SkipSimplifiedLayerNormalization", total, y, ones, outputs=4)
    net.output(x, "y", TensorProto.FLOAT, "batch", "sequence", WIDTH)
    return net.save(path)


def _llama_feeds(batch: int, sequence: int, *, outside: bool = False) -> Feeds:
    random = np.random.default_rng([batch, sequence])
    past = 5 if sequence == 1 else 0
    feeds: Feeds = {
        "input_ids": random.integers(0, VOCABULARY, (batch, sequence)),
        "lengths": np.full(batch, past + sequence - 1, np.int32),
        "total_length": np.asarray(past + sequence, np.int32),
    }
    if outside:
        feeds["position_ids"] = np.tile(np.arange(past, past + sequence), (batch, 1))
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            value = random.standard_normal((batch, PAIRS, past, SIZE)).astype(np.float32)
            feeds[f"past_{layer}_{kind}"] = value
    return feeds


def _four_bit(path: Path, *, symmetric: bool = True) -> Path:
    """The same model with its products quantized to blocks of 4 bits."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(str(path), block_size=16, is_symmetric=symmetric)
    quantizer.process()
    onnx.save(quantizer.model.model, path)
    assert any(node.op_type == "MatMulNBits" for node in quantizer.model.model.graph.node)
    return path


def _attention(path: Path) -> set[str]:
    nodes = onnx.load(path, load_external_data=False).graph.node
    return {node.op_type for node in nodes if node.op_type.endswith("Attention")}


Model = tuple[Callable[[Path], Path], Callable[[int, int], Feeds], str]
MODELS: dict[str, Model] = {
    "bert": (_bert, _bert_feeds, "Attention"),
    "bert-4bit": (lambda path: _four_bit(_bert(path)), _bert_feeds, "Attention"),
    "gpt2": (_gpt2, _gpt2_feeds, "Attention"),
    "gpt2-4bit": (lambda path: _four_bit(_gpt2(path), symmetric=False), _gpt2_feeds, "Attention"),
    "llama": (_llama, _llama_feeds, "GroupQueryAttention"),
    "llama-4bit": (lambda path: _four_bit(_llama(path)), _llama_feeds, "GroupQueryAttention"),
    "llama-4bit-zero-points": (
        lambda path: _four_bit(_llama(path), symmetric=False),
        _llama_feeds,
        "GroupQueryAttention",
    ),
    "llama-rotary": (
        lambda path: _llama(path, outside=True),
        lambda batch, sequence: _llama_feeds(batch, sequence, outside=True),
        "GroupQueryAttention",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_two_sums_a_layer(name: str, tmp_path: Path) -> None:
    build, feeds, attention = MODELS[name]
    path = build(tmp_path / "model.onnx")
    # Attention as transformers 5 writes it is fused from ONNX Runtime 1.31 on. Before, the sums are as many.
    unfused = name.startswith("bert") and INSTALLED < (1, 31)
    assert _attention(path) == (set() if unfused else {attention})
    for ranks in (2, 4):
        manifest = sharding.slice_model(path, ranks, tmp_path / f"slices_{ranks}")
        counts = Counter(item.op for item in manifest.collectives)
        assert counts.pop("AllReduce") == 2 * LAYERS
        # Embeddings are brought together once; a cache is an output, and whole there.
        caches = [output.name for output in manifest.outputs if output.name.startswith("present")]
        assert counts.pop("AllGather", 0) <= 1 + len(caches) and not counts
        whole = sum(weight.bytes for weight in manifest.weights.values())
        assert manifest.ranks[0].weight_bytes <= whole * (1 / ranks + 0.03)
        for batch, sequence in ((2, 7), (1, 1)):
            lockstep.assert_same(tmp_path / f"slices_{ranks}", path, feeds(batch, sequence))


def test_packed_groups_are_taken_apart(tmp_path: Path) -> None:
    """Queries, keys and values from one product, unequally many: what it gives is gathered, all is split."""
    path = _llama(tmp_path / "model.onnx", packed=True)
    for ranks in (2, 4):
        manifest = sharding.slice_model(path, ranks, tmp_path / f"slices_{ranks}")
        assert not manifest.whole
        for batch, sequence in ((2, 7), (1, 1)):
            lockstep.assert_same(tmp_path / f"slices_{ranks}", path, _llama_feeds(batch, sequence))


def test_fewer_pairs_than_ranks(tmp_path: Path) -> None:
    path = _llama(tmp_path / "model.onnx")
    manifest = sharding.slice_model(path, 8, tmp_path / "slices")
    assert Counter(item.op for item in manifest.collectives)["AllReduce"] == 2 * LAYERS
    lockstep.assert_same(tmp_path / "slices", path, _llama_feeds(2, 3))


def _mixture(path: Path, inner: int) -> Path:
    """Two layers with a router and eight experts, of which each token takes two."""
    net = Net()
    x = net.input("x", TensorProto.FLOAT, "batch", "sequence", 16)
    rows = net.constant(np.array([-1, 8]))
    for norm in (0, 1):
        scores = net.op("Reshape", net.linear(x, 16, 8), rows, domain="")
        fc1, b1 = net.weight(8, inner, 16, scale=0.3), net.weight(8, inner)
        fc2, b2 = net.weight(8, 16, inner, scale=0.3), net.weight(8, 16)
        chosen = {"k": 2, "activation_type": "silu", "normalize_routing_weights": norm}
        x = net.op("Add", x, net.op("MoE", x, scores, fc1, b1, fc2, b2, **chosen), domain="")
    net.output(x, "y", TensorProto.FLOAT, "batch", "sequence", 16)
    return net.save(path)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("inner", "steered"), [(7, False), (64, True), (64, False)])
def test_whole_experts_where_the_inner_axis_does_not_divide_or_as_steered(
    tmp_path: Path, ranks: int, inner: int, steered: bool
) -> None:
    path = _mixture(tmp_path / "model.onnx", inner)
    options = None
    if steered:
        (tmp_path / "plan.yaml").write_text("w2: split:0\nw7: split:0\n")
        options = SliceOptions(steering=tmp_path / "plan.yaml")
    manifest = sharding.slice_model(path, ranks, tmp_path / "out", options=options)
    first, second = (manifest.weights[name].placement for name in ("w2", "w4"))
    assert (first, second) == (("split:1", "split:2") if inner == 64 and not steered else ("split:0",) * 2)
    assert lockstep.collectives(tmp_path / "out").count("AllReduce") == 2
    for batch, sequence in ((2, 5), (1, 1)):
        x = np.random.default_rng(batch).standard_normal((batch, sequence, 16)).astype(np.float32)
        lockstep.assert_same(tmp_path / "out", path, {"x": x})


MASKS: dict[str, Any] = {
    "lengths": [3, 5],
    "keys": [[1, 1, 0, 0, 1], [1] * 5],
    "keys or a column": [[1, 1, 0, 0, 1], [1] * 5],
    "starts": [3, 5, 0, 1],
    "column": [[1], [0]],  # says nothing of keys, as the next
    "number": [[0]],
    "pairs": [[[1, 0, 1, 1, 0]] * 5] * 2,
}
WHOLE = ("keys or a column", "starts", "column", "number")
"""Masks that only the whole operator takes."""


@pytest.mark.parametrize("masked", ["not", *MASKS])
def test_values_of_another_width_than_keys(masked: str, tmp_path: Path) -> None:
    net = Net()
    axes = [2, 5 if masked == "keys" else "s"]
    x = net.input("x", TensorProto.FLOAT, *axes, WIDTH)
    wide = 3 * WIDTH // 2
    operands = [x, net.weight(WIDTH, 2 * WIDTH + wide), net.weight(2 * WIDTH + wide)]
    feeds: Feeds = {"x": np.random.default_rng(2).standard_normal((2, 5, WIDTH)).astype(np.float32)}
    if masked != "not":
        feeds["m"] = np.asarray(MASKS[masked], np.int32)
        shape = [2, "columns"] if masked == "keys or a column" else feeds["m"].shape
        operands.append(net.input("m", TensorProto.INT32, *shape))
    sizes = [WIDTH, WIDTH, wide]
    a = net.op("Attention", *operands, num_heads=HEADS, qkv_hidden_sizes=sizes, unidirectional=1)
    net.output(net.op("MatMul", a, net.weight(wide, WIDTH), domain=""), "y", TensorProto.FLOAT, 2, "s", WIDTH)
    path = net.save(tmp_path / "model.onnx")
    for world in (2, 4):
        manifest = sharding.slice_model(path, world, tmp_path / "out")
        whole = [name for name, entry in manifest.weights.items() if entry.placement == "replicated"]
        assert (masked in WHOLE) == bool([name for name in whole if manifest.weights[name].bytes > 4096])
        if masked not in WHOLE:
            assert lockstep.collectives(tmp_path / "out") == ["AllReduce"]
        lockstep.assert_same(tmp_path / "out", path, feeds)
