"""A small decoder with caches as an ONNX file, a folder around it, and the tokens of ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.launcher.generation import tokenizers_made
from tests.sharding import graphs

VOCABULARY, HIDDEN, HEADS, KV, SIZE, LAYERS, CONTEXT = 304, 64, 4, 2, 16, 2, 96
CHAT = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def save_decoder(path: Path, seed: int = 0, *, cache: bool = True, layers: int = LAYERS) -> Path:
    """Inputs ``input_ids`` and ``attention_mask`` and, with a ``cache``, ``past_key_values.N.key`` and
    ``value``; each layer is a grouped-query attention with rotary positions and a gated product."""
    random = np.random.default_rng(seed)
    weights: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]),
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", VOCABULARY])]

    def weight(name: str, *shape: int, scale: float = 0.3) -> str:
        array = (random.standard_normal(shape) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(array, name))
        return name

    def constant(name: str, value: Any, dtype: Any) -> str:
        weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def node(op: str, given: list[str], *results: str, domain: str = "", **attributes: Any) -> str:
        name = f"/{results[0]}/{op}"
        nodes.append(helper.make_node(op, given, list(results), name, domain=domain, **attributes))
        return results[0]

    angles = np.outer(np.arange(CONTEXT), 100.0 ** (-np.arange(SIZE // 2) / (SIZE // 2)))
    constant("cos", np.cos(angles), np.float32)
    constant("sin", np.sin(angles), np.float32)
    node("ReduceSum", ["attention_mask", constant("axis", [1], np.int64)], "ones", keepdims=0)
    node("Sub", ["ones", constant("one", 1, np.int64)], "last")
    node("Cast", ["last"], "lasts", to=TensorProto.INT32)
    node("Shape", ["attention_mask"], "mask_shape")
    node("Gather", ["mask_shape", constant("second", 1, np.int64)], "total_length")
    node("Cast", ["total_length"], "total_lengths", to=TensorProto.INT32)
    here = node("Gather", [weight("embed", VOCABULARY, HIDDEN, scale=1.0), "input_ids"], "embedded")
    for layer in range(layers):
        pre = f"layers.{layer}"
        q, k, v = (
            node("MatMul", [here, weight(f"{pre}.{name}.weight", HIDDEN, heads * SIZE)], f"{pre}.{name}")
            for name, heads in (("q", HEADS), ("k", KV), ("v", KV))
        )
        past = [f"past_key_values.{layer}.{kind}" if cache else "" for kind in ("key", "value")]
        present = [f"present.{layer}.{kind}" for kind in ("key", "value")]
        node(
            "GroupQueryAttention", [q, k, v, *past, "lasts", "total_lengths", "cos", "sin"],
            f"{pre}.attention", *present, domain="com.microsoft",
            num_heads=HEADS, kv_num_heads=KV, do_rotary=1,
        )  # fmt: skip
        mixed = node("MatMul", [f"{pre}.attention", weight(f"{pre}.o.weight", HIDDEN, HIDDEN)], f"{pre}.o")
        here = node("Add", [here, mixed], f"{pre}.added")
        up = node("MatMul", [here, weight(f"{pre}.up.weight", HIDDEN, 2 * HIDDEN)], f"{pre}.up")
        bent = node("Tanh", [up], f"{pre}.bent")
        down = node("MatMul", [bent, weight(f"{pre}.down.weight", 2 * HIDDEN, HIDDEN)], f"{pre}.down")
        here = node("Add", [here, down], f"{pre}.out")
        if cache:
            shape = ["batch", KV, "past", SIZE]
            inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in past]
            shape = ["batch", KV, "total", SIZE]
            outputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in present]
    node("MatMul", [here, weight("head", HIDDEN, VOCABULARY)], "logits")
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def genai_config(**search: Any) -> dict[str, Any]:
    """As ONNX Runtime GenAI's builder writes it."""
    return {
        "model": {
            "bos_token_id": 0, "eos_token_id": [0], "context_length": CONTEXT, "vocab_size": VOCABULARY,
            "type": "llama",
            "decoder": {
                "filename": "model.onnx", "head_size": SIZE, "num_key_value_heads": KV,
                "inputs": {
                    "input_ids": "input_ids", "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits", "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {"do_sample": False, "temperature": 1.0, "top_k": 50, "max_length": CONTEXT, **search},
    }  # fmt: skip


def save_folder(folder: Path, seed: int = 0) -> Path:
    """A whole model folder."""
    folder.mkdir(parents=True)
    save_decoder(folder / "model.onnx", seed)
    (folder / "genai_config.json").write_text(json.dumps(genai_config()))
    tokenizers_made.byte_level(folder / "tokenizer.json", VOCABULARY)
    special = {"eos_token": tokenizers_made.END, "bos_token": {"content": tokenizers_made.END}}
    (folder / "tokenizer_config.json").write_text(json.dumps({**special, "chat_template": CHAT}))
    return folder


class Plain:
    """The unsliced model in plain ONNX Runtime: every token anew, without optimisations."""

    def __init__(self, path: Path) -> None:
        self._session = graphs.session(path, optimized=False)

    def logits(self, ids: list[int]) -> Any:
        """Of all positions (n, vocabulary)."""
        feeds: dict[str, Any] = {
            "input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)
        }  # fmt: skip
        for item in self._session.get_inputs()[2:]:
            feeds[item.name] = np.zeros((1, KV, 0, SIZE), np.float32)
        return self._session.run(["logits"], feeds)[0][0]

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The likeliest continuation."""
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[len(prompt) :]
