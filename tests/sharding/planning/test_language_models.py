"""Language models as ONNX Runtime GenAI's model builder writes them: two sums a layer, whatever their form.

The graphs have the builder's operators, attributes and names of values, with random weights.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sharding
from tests.sharding import lockstep
from tests.turns import in_turns

MICROSOFT = "com.microsoft"
LAYERS, HEADS, SIZE, WIDTH, INNER, VOCABULARY, PLACES, BLOCK = 2, 24, 16, 96, 384, 120, 256, 32
EXPERTS = 4
Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


@dataclass(frozen=True)
class Form:
    """What tells one architecture from another, and one precision."""

    pairs: int = 12
    """Key/value heads."""
    bits: int = 32
    """Of the products' weights."""
    points: bool = False
    """Whether blocks of few bits have zero points."""
    dequantized: bool = False
    """Whether weights of few bits go through DequantizeLinear (QDQ)."""
    bias: bool = False
    """Whether queries, keys and values have a bias (Qwen2)."""
    normalized: bool = False
    """Whether each head of queries and keys is normalized (Qwen3)."""
    after: bool = False
    """Whether what a layer adds is normalized too; softly capped scores, tied embeddings (Gemma 2)."""
    sinks: bool = False
    """Sinks, a window, and experts (gpt-oss)."""
    convolved: bool = False
    """Whether the first layer has a convolution with a state instead of attention (LFM2)."""
    accuracy: int = 0
    """Of products of few bits: 4 rounds what they read to 8 bits."""


FORMS = {
    "llama": Form(),
    "llama-int4": Form(bits=4),
    "llama-int8": Form(bits=8),
    "llama-int4-zero-points": Form(bits=4, points=True),
    "llama-int4-qdq": Form(bits=4, points=True, dequantized=True),
    "qwen2": Form(bias=True),
    "qwen2-int4": Form(bits=4, bias=True),
    "qwen3": Form(normalized=True),
    "qwen3-int4": Form(bits=4, normalized=True),
    "gemma2": Form(after=True),
    "gemma2-int4": Form(bits=4, after=True),
    "gpt-oss": Form(sinks=True, bias=True),
    "gpt-oss-int4": Form(sinks=True, bias=True, bits=4),
}


class Builder:
    """Writes such a model."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(7)

    def weight(self, name: str, *shape: int, scale: float = 0.1) -> str:
        return self.constant(name, (self.random.standard_normal(shape) * scale).astype(np.float32))

    def constant(self, name: str, value: Array) -> str:
        if all(item.name != name for item in self.weights):
            self.weights.append(numpy_helper.from_array(value, name))
        return name

    def numbers(self, *values: int) -> str:
        return self.constant(f"/model/constants/INT64/{list(values)}", np.asarray(values, np.int64))

    def op(
        self, op_type: str, name: str, *inputs: str, outputs: int = 1, domain: str = "", **more: Any
    ) -> Any:
        results = [f"{name}/output_{i}" for i in range(outputs)]
        self.nodes.append(
            helper.make_node(op_type, inputs, results, f"{name}/{op_type}", domain=domain, **more)
        )
        return results[0] if outputs == 1 else results

    def product(self, name: str, x: str, rows: int, columns: int, *, bits: int | None = None) -> str:
        """``/model/layers.0/attn/q_proj`` has the weight ``model.layers.0.attn.q_proj.MatMul.weight``."""
        own = name.strip("/").replace("/", ".") + ".MatMul.weight"
        bits = self.form.bits if bits is None else bits
        if bits == 32:
            return str(self.op("MatMul", f"{name}/MatMul", x, self.weight(own, rows, columns)))
        blocks = rows // BLOCK
        if self.form.dequantized:
            return self.dequantized(name, own, x, (rows, columns))
        packed = self.random.integers(0, 256, (columns, blocks, BLOCK * bits // 8)).astype(np.uint8)
        inputs = [x, self.constant(f"{own}_Q4", packed)]
        scales = self.random.uniform(0.5, 1, (columns, blocks)) * 0.2 / 2**bits
        inputs.append(self.constant(f"{own}_scales", scales.astype(np.float32)))
        if self.form.points:
            points = self.random.integers(0, 256, (columns, (blocks * bits + 7) // 8)).astype(np.uint8)
            inputs.append(self.constant(f"{own}_zp", points))
        settings = {"K": rows, "N": columns, "bits": bits, "block_size": BLOCK}
        settings["accuracy_level"] = self.form.accuracy
        return str(self.op("MatMulNBits", f"{name}/MatMul", *inputs, domain=MICROSOFT, **settings))

    def dequantized(self, name: str, own: str, x: str, shape: tuple[int, int]) -> str:
        rows, columns = shape
        inputs = []
        for part, count, high in (("Q4", rows, 16), ("zp", rows // BLOCK, 16)):
            codes = self.random.integers(0, high, (count, columns)).astype(np.uint8)
            tensor = helper.make_tensor(
                f"{own}_DQ_{part}", TensorProto.UINT4, (count, columns), codes.ravel()
            )
            self.weights.append(tensor)
            inputs.append(tensor.name)
        scales = self.random.uniform(0.5, 1, (rows // BLOCK, columns)).astype(np.float32) * 0.02
        inputs.insert(1, self.constant(f"{own}_DQ_scales", scales))
        whole = self.op("DequantizeLinear", f"{own}_DQ", *inputs, axis=0, block_size=BLOCK)
        return str(self.op("MatMul", f"{name}/MatMul", x, whole))

    def added(self, name: str, x: str, columns: int) -> str:
        own = name.strip("/").replace("/", ".") + ".Add.bias"
        return str(self.op("Add", f"{name}/Add", x, self.weight(own, columns)))

    def norm(self, name: str, x: str, size: int = WIDTH) -> str:
        scale = self.constant(f"{name.strip('/').replace('/', '.')}.weight", np.ones(size, np.float32))
        return str(
            self.op("SimplifiedLayerNormalization", name, x, scale, axis=-1, epsilon=1e-5, stash_type=1)
        )

    def skip(self, name: str, total: str, x: str) -> list[str]:
        scale = self.constant(f"{name.strip('/').replace('/', '.')}.weight", np.ones(WIDTH, np.float32))
        results = [f"{name}/output_0", "", "", f"{name}/output_3"]
        self.nodes.append(
            helper.make_node(
                "SkipSimplifiedLayerNormalization",
                [total, x, scale],
                results,
                f"{name}/SkipLayerNorm",
                domain=MICROSOFT,
                epsilon=1e-5,
            )
        )
        return [results[0], results[3]]

    def heads(self, layer: str, x: str) -> list[str]:
        """The first three inputs of the attention: packed, or apart where heads are normalized."""
        name, pairs = f"{layer}/attn/qkv_proj", self.form.pairs
        widths = [HEADS * SIZE, pairs * SIZE, pairs * SIZE]
        packed = self.product(name, x, WIDTH, sum(widths))
        if self.form.bias:
            packed = self.added(name, packed, sum(widths))
        if not self.form.normalized:
            return [packed, "", ""]
        apart = self.op("Split", f"{name}/Split", packed, self.numbers(*widths), outputs=3, axis=-1)
        for index, kind in enumerate("qk"):
            own = f"{layer}/attn/{kind}_norm"
            by_head = self.op("Reshape", f"{own}/Reshape_1", apart[index], self.numbers(0, -1, SIZE))
            scaled = self.norm(f"{own}/layernorm", by_head, SIZE)
            apart[index] = self.op("Reshape", f"{own}/Reshape_2", scaled, self.numbers(0, -1, widths[index]))
        return list(apart)

    def attention(self, number: int, x: str, shared: list[str]) -> str:
        layer, form = f"/model/layers.{number}", self.form
        past = [f"past_key_values.{number}.{kind}" for kind in ("key", "value")]
        sink = self.weight(f"model.layers.{number}.attn.sinks", HEADS) if form.sinks else ""
        name = f"{layer}/attn/GroupQueryAttention"
        self.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [*self.heads(layer, x), *past, *shared, "", "", sink],
                [f"{name}/output_0", *(f"present.{number}.{kind}" for kind in ("key", "value"))],
                name,
                domain=MICROSOFT,
                num_heads=HEADS,
                kv_num_heads=form.pairs,
                scale=SIZE**-0.5,
                softcap=50.0 if form.after else 0.0,
                local_window_size=3 if form.sinks or (form.after and number % 2) else -1,
                do_rotary=1,
                rotary_interleaved=0,
            )
        )
        y = self.product(f"{layer}/attn/o_proj", f"{name}/output_0", HEADS * SIZE, WIDTH)
        return self.added(f"{layer}/attn/o_proj", y, WIDTH) if form.sinks else y

    def convolution(self, x: str) -> str:
        name = "/model/layers.0/conv"
        x = self.product(f"{name}/in_proj", x, WIDTH, 3 * WIDTH)
        x = self.op("Transpose", f"{name}/Transpose_1", x, perm=[0, 2, 1])
        first, second, third = self.op(
            "Split", f"{name}/Split", x, self.numbers(WIDTH, WIDTH, WIDTH), outputs=3, axis=1
        )
        both = self.op("Mul", f"{name}/Mul_1", first, third)
        kernel = self.weight("model.layers.0.conv.conv.weight", WIDTH, 1, 3)
        self.nodes.append(
            helper.make_node(
                "CausalConvWithState",
                [both, kernel, "", "past.0.conv"],
                [f"{name}/CausalConvWithState/output_0", "present.0.conv"],
                f"{name}/CausalConvWithState",
                domain=MICROSOFT,
                activation="none",
                ndim=1,
            )
        )
        gated = self.op("Mul", f"{name}/Mul_2", second, f"{name}/CausalConvWithState/output_0")
        turned = self.op("Transpose", f"{name}/Transpose_2", gated, perm=[0, 2, 1])
        return self.product(f"{name}/out_proj", turned, WIDTH, WIDTH)

    def mlp(self, layer: str, x: str) -> str:
        gate, up = (self.product(f"{layer}/mlp/{kind}_proj", x, WIDTH, INNER) for kind in ("gate", "up"))
        if self.form.after:
            gate = self.op("Gelu", f"{layer}/mlp/act_fn/FastGelu", gate, approximate="tanh")
        else:
            sigmoid = self.op("Sigmoid", f"{layer}/mlp/act_fn/Sigmoid", gate)
            gate = self.op("Mul", f"{layer}/mlp/act_fn/Mul", gate, sigmoid)
        both = self.op("Mul", f"{layer}/mlp/Mul", gate, up)
        return self.product(f"{layer}/mlp/down_proj", both, INNER, WIDTH)

    def experts(self, layer: str, x: str) -> str:
        own = layer.strip("/").replace("/", ".") + ".moe.experts"
        scores = self.product(f"{layer}/moe/router", x, WIDTH, EXPERTS, bits=32)
        scores = self.added(f"{layer}/moe/router", scores, EXPERTS)
        scores = self.op("Reshape", f"{layer}/moe/router/Reshape", scores, self.numbers(-1, EXPERTS))
        weights = []
        for name, rows, columns in (("gate_up_proj", WIDTH, 2 * INNER), ("down_proj", INNER, WIDTH)):
            if self.form.bits == 4:
                codes = self.random.integers(0, 256, (EXPERTS, columns, rows // 2)).astype(np.uint8)
                scales = self.random.uniform(0.005, 0.02, (EXPERTS, columns, rows // BLOCK))
                weights.append(self.constant(f"{own}.{name}.qweight", codes))
                weights.append(self.constant(f"{own}.{name}.scales", scales.astype(np.float32)))
            else:
                weights.append(self.weight(f"{own}.{name}.weight", EXPERTS, columns, rows))
            weights.append(self.weight(f"{own}.{name}.bias", EXPERTS, columns))
        settings: dict[str, Any] = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 7.0}
        settings |= {"k": 2, "normalize_routing_weights": 1, "swiglu_fusion": 1, "use_sparse_mixer": 0}
        op_type = "MoE"
        if self.form.bits == 4:
            op_type, settings = "QMoE", {**settings, "expert_weight_bits": 4, "block_size": BLOCK}
        settings |= {"activation_type": "swiglu", "domain": MICROSOFT}
        return str(self.op(op_type, f"{layer}/moe", x, scores, *weights, "", "", **settings))

    def lengths(self) -> list[str]:
        """Of the rows without padding, and of the longest with it; what turns queries and keys."""
        base, one = "/model/attn_mask_reformat/attn_mask_subgraph", self.numbers(1)
        total = self.op("ReduceSum", f"{base}/ReduceSum", "attention_mask", one, keepdims=0)
        before = self.op("Sub", f"{base}/Sub", total, one)
        shape = self.op("Shape", f"{base}/Shape", "attention_mask")
        place = self.constant("/model/constants/INT64/1", np.asarray(1, np.int64))
        longest = self.op("Gather", f"{base}/Gather", shape, place, axis=0)
        casts = [
            self.op("Cast", f"{base}/{kind}/Cast", value, to=TensorProto.INT32)
            for kind, value in (("Sub", before), ("Gather", longest))
        ]
        angles = np.arange(PLACES)[:, None] / 100 ** (np.arange(SIZE // 2)[None] / (SIZE // 2))
        tables = {"cos_cache": np.cos(angles), "sin_cache": np.sin(angles)}
        return [*casts, *(self.constant(name, table.astype(np.float32)) for name, table in tables.items())]

    def embedded(self) -> str:
        name, form = "/model/embed_tokens", self.form
        if form.after and form.bits == 4:  # the head's table of few bits is looked up, too
            table = "lm_head.MatMul.weight"
            packed = self.random.integers(0, 256, (VOCABULARY, WIDTH // BLOCK, BLOCK // 2)).astype(np.uint8)
            scales = self.random.uniform(0.005, 0.01, (VOCABULARY, WIDTH // BLOCK)).astype(np.float32)
            self.constant(f"{table}_scales", scales)
            rows = self.op(
                "Reshape",
                f"{name}/Reshape",
                self.constant(f"{table}_Q4", packed),
                self.numbers(VOCABULARY, WIDTH // 2),
            )
            settings = {"bits": 4, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
            found = self.op(
                "GatherBlockQuantized",
                f"{name}/GatherBlockQuantized",
                rows,
                "input_ids",
                f"{table}_scales",
                domain=MICROSOFT,
                **settings,
            )
            return str(found)
        return str(
            self.op(
                "Gather",
                f"{name}/Gather",
                self.weight("model.embed_tokens.weight", VOCABULARY, WIDTH),
                "input_ids",
            )
        )

    def model(self) -> onnx.ModelProto:
        shared, total = self.lengths(), self.embedded()
        x = self.norm("/model/layers.0/input_layernorm", total)
        for number in range(LAYERS):
            layer = f"/model/layers.{number}"
            if self.form.convolved and number == 0:
                y = self.convolution(x)
            else:
                y = self.attention(number, x, shared)
            if self.form.after:
                y = self.norm(f"{layer}/after_attention_layernorm", y)
            x, total = self.skip(f"{layer}/post_attention_layernorm", total, y)
            y = self.experts(layer, x) if self.form.sinks else self.mlp(layer, x)
            if self.form.after:
                y = self.norm(f"{layer}/post_feedforward_layernorm", y)
            x, total = self.skip(f"/model/layers.{number + 1}/input_layernorm", total, y)
        logits = self.product("/lm_head", x, WIDTH, VOCABULARY)
        if self.form.after:
            cap = self.constant("/model/constants/FLOAT/30.0", np.asarray(30, np.float32))
            capped = self.op(
                "Tanh", "/lm_head/softcap/Tanh", self.op("Div", "/lm_head/softcap/Div", logits, cap)
            )
            logits = self.op("Mul", "/lm_head/softcap/Mul", capped, cap)
        self.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
        graph = helper.make_graph(
            self.nodes, "main_graph", list(self.inputs()), list(self.outputs()), self.weights
        )
        opsets = [helper.make_opsetid("", 22), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def inputs(self) -> Iterator[onnx.ValueInfoProto]:
        for name, length in (("input_ids", "sequence_length"), ("attention_mask", "total_sequence_length")):
            yield helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", length])
        yield from self.caches("past_key_values", "past_sequence_length")

    def outputs(self) -> Iterator[onnx.ValueInfoProto]:
        shape = ["batch_size", "sequence_length", VOCABULARY]
        yield helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)
        yield from self.caches("present", "total_sequence_length")

    def caches(self, name: str, length: str) -> Iterator[onnx.ValueInfoProto]:
        shape = ["batch_size", self.form.pairs, length, "kv_cache_dim"]
        for number in range(LAYERS):
            if self.form.convolved and number == 0:
                state = f"{name.split('_', maxsplit=1)[0]}.0.conv"
                yield helper.make_tensor_value_info(state, TensorProto.FLOAT, ["batch_size", WIDTH, 2])
                continue
            for kind in ("key", "value"):
                yield helper.make_tensor_value_info(f"{name}.{number}.{kind}", TensorProto.FLOAT, shape)


def feeds_of(form: Form, batch: int, sequence: int, past: int) -> Feeds:
    random = np.random.default_rng([batch, sequence])
    shape = (batch, form.pairs, past, SIZE)
    names = [f"past_key_values.{number}.{kind}" for number in range(LAYERS) for kind in ("key", "value")]
    states = dict.fromkeys(names, shape)
    if form.convolved:
        states = {**dict.fromkeys(names[2:], shape), "past.0.conv": (batch, WIDTH, 2)}
    return {
        "input_ids": random.integers(0, VOCABULARY, (batch, sequence)),
        "attention_mask": np.ones((batch, past + sequence), np.int64),
        **{name: random.standard_normal(own).astype(np.float32) for name, own in states.items()},
    }


def _check(form: Form, ranks: int, tmp_path: Path, *, most: float = 0.03, gathers: int = 0) -> None:
    """``gathers``: how many there may be in the layers at most, one instead of a sum."""
    path = tmp_path / "model.onnx"
    onnx.save(Builder(form).model(), path)
    manifest = sharding.slice_model(path, ranks, tmp_path / "slices")
    inside = [
        item.op
        for item in manifest.collectives
        if "layers" in item.tensor and not item.tensor.startswith("present")
    ]
    assert inside.count("AllGather") <= gathers
    assert Counter(inside) == {"AllReduce": 2 * LAYERS} or (gathers and len(inside) <= 2 * LAYERS + 1)
    others = [item for item in manifest.collectives if "layers" not in item.tensor]
    # The embeddings and the head; a cache is an output, and whole there.
    assert len([item for item in others if not item.tensor.startswith("present")]) == 2
    assert "GroupQueryAttention" not in manifest.whole
    tables = sum(manifest.weights[name].bytes for name in ("cos_cache", "sin_cache"))  # each rank needs them
    whole = sum(weight.bytes for weight in manifest.weights.values()) - tables
    assert manifest.ranks[0].weight_bytes - tables <= whole * (1 / ranks + most)
    for batch, sequence, past in ((2, 5, 0), (1, 1, 4)):
        feeds = feeds_of(form, batch, sequence, past)
        lockstep.assert_same(tmp_path / "slices", path, feeds)


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    lockstep.without_rounding(monkeypatch)


MORE = {"llama-int4-zero-points": (3, 4), "gemma2-int4": (4,), "llama-int4-qdq": (2,), "gpt-oss-int4": (3,)}
"""Ranks with which these take ways through the planner that no other of the tests takes."""


@pytest.mark.parametrize(
    ("name", "ranks"),
    [*in_turns(list(FORMS), [2, 3, 4]), *((name, ranks) for name in MORE for ranks in MORE[name])],
)
def test_two_sums_a_layer(name: str, ranks: int, tmp_path: Path) -> None:
    _check(FORMS[name], ranks, tmp_path)


@pytest.mark.parametrize("pairs", [1, 2])
@pytest.mark.parametrize("bits", [32, 4])
def test_fewer_key_value_heads_than_ranks(pairs: int, bits: int, tmp_path: Path) -> None:
    """Groups of ranks hold the same head, or all of them the only one."""
    _check(Form(pairs=pairs, bits=bits, normalized=bits == 32), 4, tmp_path, most=0.05)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_convolution_with_a_state(ranks: int, tmp_path: Path) -> None:
    """Its channels are split; or its products alone, where a state that is gathered would cost more."""
    _check(Form(convolved=True, normalized=True), ranks, tmp_path, gathers=2)
