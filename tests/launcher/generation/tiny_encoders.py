# ruff: noqa: E501 - the tables of cases stay one line each
"""Small models of encoder and decoder in all forms that people have, which compute the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH, START, END = 40, 16, 3, 1
CONFIG = {
    "model_type": "t5", "vocab_size": VOCABULARY, "decoder_start_token_id": START, "eos_token_id": END,
    "is_encoder_decoder": True,
}  # fmt: skip
SELF = [f"past_key_values.0.decoder.{kind}" for kind in ("key", "value")]
CROSS = [f"past_key_values.0.encoder.{kind}" for kind in ("key", "value")]
_FLOAT, _INT = TensorProto.FLOAT, TensorProto.INT64


def _weights(*names: str) -> list[onnx.TensorProto]:
    found = []
    for name in names:
        random = np.random.default_rng(sum(map(ord, name)))
        shape = (VOCABULARY if name == "embed" else WIDTH, VOCABULARY if name == "head" else WIDTH)
        found.append(numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) * 0.6, name))
    found += [
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in {"one": 1, "ones": [1], "minus": [-1]}.items()
    ]
    return found


def _node(op: str, given: list[str], result: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, given, [result], f"/{result}", **attributes)


def _value(name: str, kind: int, *shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def _save(path: Path, nodes: Any, inputs: Any, outputs: Any, *weights: str) -> None:
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, _weights(*weights))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def _cross(hidden: str) -> list[onnx.NodeProto]:
    """Keys and values of what the encoder gave."""
    nodes = []
    for kind in ("key", "value"):
        nodes.append(_node("MatMul", [hidden, f"cross_{kind}"], f"{kind}_flat"))
        nodes.append(_node("Unsqueeze", [f"{kind}_flat", "ones"], f"{kind}_cross"))
    return nodes


def _attend(name: str, key: str, value: str, mask: str = "") -> list[onnx.NodeProto]:
    """Of the query ``name``_q (batch, 1, tokens, width)."""
    scores = f"{name}_masked" if mask else f"{name}_scores"
    return [
        _node("Transpose", [key], f"{name}_turned", perm=[0, 1, 3, 2]),
        _node("MatMul", [f"{name}_q", f"{name}_turned"], f"{name}_scores"),
        *([_node("Add", [f"{name}_scores", mask], scores)] if mask else []),
        _node("Softmax", [scores], f"{name}_shares", axis=-1),
        _node("MatMul", [f"{name}_shares", value], f"{name}_out"),
    ]


def _decoder(past: list[str], cross: list[str], present: list[str]) -> list[onnx.NodeProto]:
    """From ``input_ids`` to ``logits``; ``past`` is nothing for the first step."""
    nodes = [
        _node("Gather", ["embed", "input_ids"], "x_flat"),
        _node("Unsqueeze", ["x_flat", "ones"], "x"),
        *(_node("MatMul", ["x", f"self_{kind}"], f"new_{kind}") for kind in ("key", "value")),
        _node("MatMul", ["x", "self_q_w"], "self_q"),
        _node("MatMul", ["x", "cross_q_w"], "cross_q"),
    ]
    for place, kind in enumerate(("key", "value")):
        given = [past[place], f"new_{kind}"] if past else [f"new_{kind}"]
        nodes.append(_node("Concat", given, present[place], axis=2))
    nodes += [
        _node("Shape", ["x"], "tokens", start=2, end=3),
        _node("Shape", [present[0]], "total", start=2, end=3),
        _node("Concat", ["tokens", "total"], "mask_shape", axis=0),
        _node("ConstantOfShape", ["mask_shape"], "far", value=numpy_helper.from_array(np.array([-1e9], np.float32))),
        _node("Sub", ["total", "tokens"], "before"),
        _node("Add", ["before", "ones"], "diagonals"),
        _node("Squeeze", ["diagonals"], "diagonal"),
        _node("Trilu", ["far", "diagonal"], "mask", upper=1),
        *_attend("self", present[0], present[1], "mask"),
        *_attend("cross", *cross),
        _node("Add", ["x", "self_out"], "first_sum"),
        _node("Add", ["first_sum", "cross_out"], "second_sum"),
        _node("Squeeze", ["second_sum", "ones"], "flat"),
        _node("MatMul", ["flat", "head"], "logits"),
    ]  # fmt: skip
    return nodes


_DECODER = ("embed", "self_key", "self_value", "self_q_w", "cross_q_w", "cross_key", "cross_value", "head")
_IDS = _value("input_ids", _INT, "batch", "tokens")
_LOGITS = _value("logits", _FLOAT, "batch", "tokens", VOCABULARY)
_HIDDEN = _value("encoder_hidden_states", _FLOAT, "batch", "read", WIDTH)
_ENCODER = [
    _node("Gather", ["embed", "input_ids"], "seen"),
    _node("MatMul", ["seen", "encode"], "bent"),
    _node("Tanh", ["bent"], "hidden"),
]


def _states(names: list[str], axis: str) -> list[onnx.ValueInfoProto]:
    return [_value(name, _FLOAT, "batch", 1, axis, WIDTH) for name in names]


def _present(names: list[str]) -> list[str]:
    return [name.replace("past_key_values", "present").replace("past", "present") for name in names]


def save_optimum(folder: Path, *, merged: bool) -> Path:
    """``encoder_model`` and ``decoder_model``, with ``decoder_with_past_model`` or as one graph of two branches."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    mask = _value("attention_mask", _INT, "batch", "read")
    masked = [
        _node("Cast", ["attention_mask"], "kept", to=_FLOAT),
        _node("Unsqueeze", ["kept", "minus"], "keeps"),
        _node("Mul", ["hidden", "keeps"], "last_hidden_state"),
    ]
    _save(
        folder / "encoder_model.onnx", [*_ENCODER, *masked], [_value("input_ids", _INT, "batch", "read"), mask],
        [_value("last_hidden_state", _FLOAT, "batch", "read", WIDTH)], "embed", "encode",
    )  # fmt: skip
    own, cross = _present(SELF), _present(CROSS)
    first = [
        *_cross("encoder_hidden_states"),
        *_decoder([], ["key_cross", "value_cross"], own),
        *(
            _node("Identity", [f"{kind}_cross"], name)
            for kind, name in zip(("key", "value"), cross, strict=True)
        ),
    ]
    later = _decoder(SELF, CROSS, own)
    everything = [_LOGITS, *_states(own, "total"), *_states(cross, "read")]
    past = [*_states(SELF, "past"), *_states(CROSS, "read")]
    _save(folder / "decoder_model.onnx", first, [_IDS, _HIDDEN], everything, *_DECODER)
    if not merged:
        outputs = [_LOGITS, *_states(own, "total")]
        _save(folder / "decoder_with_past_model.onnx", later, [_IDS, *past], outputs, *_DECODER)
        return folder
    empty = numpy_helper.from_array(np.zeros((1, 1, 1, WIDTH), np.float32))
    nothing = [_node("Constant", [], name, value=empty) for name in cross]  # what is known already
    names = [item.name for item in everything]
    branches = {
        f"{branch}_branch": helper.make_graph(nodes, branch, [], [helper.make_empty_tensor_value_info(name) for name in names])
        for branch, nodes in (("then", [*later, *nothing]), ("else", first))
    }  # fmt: skip
    whole = helper.make_node("If", ["use_cache_branch"], names, "whole", **branches)
    inputs = [_IDS, _HIDDEN, *past, _value("use_cache_branch", TensorProto.BOOL, 1)]
    _save(folder / "decoder_model_merged.onnx", [whole], inputs, everything, *_DECODER)
    return folder


def save_genai(folder: Path) -> Path:
    """As of sound: the encoder reads an array, and gives the decoder's keys and values of it."""
    folder.mkdir()
    own, cross = (["past_key_self_0", "past_value_self_0"], ["past_key_cross_0", "past_value_cross_0"])
    sound = [_node("MatMul", ["audio_features", "encode"], "bent"), _node("Tanh", ["bent"], "hidden_states")]
    given = [_node("Identity", [f"{kind}_cross"], f"present_{kind}_cross_0") for kind in ("key", "value")]
    _save(
        folder / "encoder.onnx", [*sound, *_cross("hidden_states"), *given],
        [_value("audio_features", _FLOAT, "batch", "read", WIDTH)],
        [_value("hidden_states", _FLOAT, "batch", "read", WIDTH), *_states(_present(cross), "read")],
        "encode", "cross_key", "cross_value",
    )  # fmt: skip
    _save(
        folder / "decoder.onnx", _decoder(own, cross, _present(own)),
        [_IDS, *_states(own, "past"), *_states(cross, "read")], [_LOGITS, *_states(_present(own), "total")], *_DECODER,
    )  # fmt: skip
    part = {"head_size": WIDTH, "num_key_value_heads": 1}
    names = {"key": "past_key_self_%d", "value": "past_value_self_%d"}
    inputs = {"input_ids": "input_ids", **{f"past_{kind}_names": name for kind, name in names.items()}}
    outputs = {f"present_{kind}_names": name.replace("past", "present") for kind, name in names.items()}
    config = {
        "model": {
            "type": "whisper", "vocab_size": VOCABULARY, "context_length": 30, "eos_token_id": END,
            "decoder": {**part, "filename": "decoder.onnx", "inputs": inputs, "outputs": {"logits": "logits", **outputs}},
            "encoder": {**part, "filename": "encoder.onnx", "inputs": {"audio_features": "audio_features"},
                        "outputs": {"encoder_hidden_states": "hidden_states"}},
        }
    }  # fmt: skip
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder
