"""Small encoders of texts in folders as the package sentence-transformers writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tokenizers as tk
from onnx import TensorProto, helper, numpy_helper

from tests.sharding import graphs

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "cats",
    "sleep",
    "all",
    "day",
]
WIDTH, LONGEST = 24, 12
_FLOAT, _INT = TensorProto.FLOAT, TensorProto.INT64


def save_tokenizer(path: Path) -> Path:
    """Of words, between [CLS] and [SEP]."""
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made = tk.Tokenizer(
        tk.models.WordLevel({w: i for i, w in enumerate([*marks, *WORDS])}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tk.pre_tokenizers.Whitespace()
    made.add_special_tokens(marks)
    made.post_processor = tk.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    path.write_text(made.to_str())
    return path


def save_encoder(
    path: Path,
    *,
    masked: bool = True,
    kinds: bool = False,
    output: str = "last_hidden_state",
    whole: bool = False,
    heeds: bool = True,
    quantised: bool = False,
    dtype: int = _INT,
    length: int | None = None,
) -> Path:
    """One layer of attention. ``masked``: it has an ``attention_mask``, which it ``heeds``; ``kinds``: it has
    ``token_type_ids``; ``whole``: it gives the mean of all tokens; ``quantised``: what is computed of a row
    depends on all rows."""
    random = np.random.default_rng(3)
    weights, nodes = [], []

    def weight(name: str, array: Any) -> str:
        weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(op: str, given: list[str], result: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, given, [result], f"/{result}", **attributes))
        return result

    weight("embed", random.standard_normal((len(WORDS) + 4, WIDTH)).astype(np.float32))
    for name in ("q", "k", "v", "o"):
        weight(name, (random.standard_normal((WIDTH, WIDTH)) * 0.3).astype(np.float32))
    shape = ["batch", "sequence" if length is None else length]
    inputs = [helper.make_tensor_value_info("input_ids", dtype, shape)]
    x = node("Gather", ["embed", "input_ids"], "x0")
    if kinds:
        inputs.append(helper.make_tensor_value_info("token_type_ids", dtype, shape))
        weight("kinds", random.standard_normal((2, WIDTH)).astype(np.float32))
        x = node("Add", [x, node("Gather", ["kinds", "token_type_ids"], "kind")], "x1")
    product = "MatMul"
    if quantised:
        node("DynamicQuantizeLinear", [x], "xq")
        nodes[-1].output.extend(["xs", "xz"])
        x = node("DequantizeLinear", ["xq", "xs", "xz"], "x2")
    for name in ("q", "k", "v"):
        node(product, [x, name], f"{name}x")
    node("Transpose", ["kx"], "kt", perm=[0, 2, 1])
    scores = node("MatMul", ["qx", "kt"], "scores")
    if masked:
        inputs.append(helper.make_tensor_value_info("attention_mask", dtype, shape))
        node("Cast", ["attention_mask"], "kept", to=_FLOAT)
        node("Sub", [weight("one", np.float32(1)), "kept"], "hidden")
        node("Mul", ["hidden", weight("far", np.float32(-1e9))], "bias")
        node("Unsqueeze", ["bias", weight("axis", np.array([1], np.int64))], "biases")
        scores = node("Add", ["scores", "biases"], "masked") if heeds else scores
    node("Softmax", [scores], "shares", axis=-1)
    node("MatMul", ["shares", "vx"], "mixed")
    node("MatMul", ["mixed", "o"], "mo")
    node("Tanh", ["mo"], "bent")
    hidden = node("Add", [x, "bent"], "tokens" if whole else output)
    outputs = [helper.make_tensor_value_info(hidden, _FLOAT, [*shape, WIDTH])]
    if whole:
        node("ReduceMean", ["tokens"], output, axes=[1], keepdims=0)
        outputs = [helper.make_tensor_value_info(output, _FLOAT, ["batch", WIDTH])]
    graph = helper.make_graph(nodes, "encoder", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def save_folder(
    folder: Path, modes: Sequence[str] = ("mean_tokens",), *, normalise: bool = True, **how: Any
) -> Path:
    """A whole folder; ``modes``: of `1_Pooling`."""
    (folder / "1_Pooling").mkdir(parents=True)
    save_encoder(folder / "model.onnx", **how)
    save_tokenizer(folder / "tokenizer.json")
    pooling = {"word_embedding_dimension": WIDTH, **{f"pooling_mode_{mode}": True for mode in modes}}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalise else [])]
    modules = [
        {"idx": at, "name": str(at), "path": f"{at}_{kind}" if at else "",
         "type": f"sentence_transformers.models.{kind}"}
        for at, kind in enumerate(kinds)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LONGEST}))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "pad_token_id": 0}))
    return folder


class Plain:
    """The unsliced encoder in plain ONNX Runtime, one text at a time and nothing filled up."""

    def __init__(self, folder: Path) -> None:
        self.session = graphs.session(folder / "model.onnx", optimized=False)
        self.tokenizer = tk.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def tokens(self, text: str | Sequence[int]) -> Any:
        """The vectors of a text's tokens (n, width), or of the text itself (width,)."""
        ids = self.tokenizer.encode(text).ids if isinstance(text, str) else list(text)
        known: Mapping[str, Any] = {
            "input_ids": [ids], "attention_mask": [[1] * len(ids)], "token_type_ids": [[0] * len(ids)],
        }  # fmt: skip
        feeds = {
            item.name: np.array(known[item.name], np.int64 if "64" in item.type else np.int32)
            for item in self.session.get_inputs()
        }
        return self.session.run(None, feeds)[0][0]

    def vector(self, text: str | Sequence[int], mode: str = "mean", *, normalise: bool = True) -> Any:
        """By the poolings' definitions, in float64."""
        rows = self.tokens(text).astype(np.float64)
        count = len(rows)
        weights = np.arange(1, count + 1)[:, None]
        found = {
            "cls": rows[0], "max": rows.max(0), "mean": rows.sum(0) / count,
            "mean_sqrt_len": rows.sum(0) / np.sqrt(count),
            "weightedmean": (rows * weights).sum(0) / weights.sum(), "lasttoken": rows[-1],
        }[mode]  # fmt: skip
        return found / np.linalg.norm(found) if normalise else found
