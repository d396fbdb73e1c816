"""Decoders as optimum merges them: one `If` over the graph of the first step and that of all later ones.

Both branches read the same weights, which lie outside of them. `use_cache_branch` says which one runs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.architectures import language
from tests.architectures.exporting import Feeds, export, normal, padded, save_feeds, tokens

if TYPE_CHECKING:
    import onnx


def t5_merged(path: Path) -> None:
    """The decoder of T5 1.1 with caches of its own keys and values, and of the encoder's, computed once."""
    import torch
    from transformers import DynamicCache, EncoderDecoderCache

    model = language._t5()
    kinds = [
        f"{layer}.{side}.{kind}"
        for layer in range(language.LAYERS)
        for side in ("decoder", "encoder")
        for kind in ("key", "value")
    ]

    def run(ids: Any, states: Any, mask: Any, cache: Any) -> Any:
        hidden = model.decoder(
            input_ids=ids,
            encoder_hidden_states=states,
            encoder_attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return model.lm_head(hidden)

    def layers(cache: Any) -> list[tuple[Any, Any]]:
        return [(layer.keys, layer.values) for layer in cache.layers]

    def first(mask: Any, ids: Any, states: Any) -> Any:
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        logits = run(ids, states, mask, cache)
        both = zip(layers(cache.self_attention_cache), layers(cache.cross_attention_cache), strict=True)
        return logits, [(*own, *other) for own, other in both]

    def later(mask: Any, ids: Any, states: Any, past: list[tuple[Any, ...]]) -> Any:
        own, other = DynamicCache(), DynamicCache()
        for layer, (key, value, cross_key, cross_value) in enumerate(past):
            own.update(key, value, layer)
            other.update(cross_key, cross_value, layer)
        cache = EncoderDecoderCache(own, other)
        logits = run(ids, states, mask, cache)
        return logits, layers(cache.self_attention_cache)

    given = ["encoder_attention_mask", "input_ids", "encoder_hidden_states"]
    source = {0: "batch", 1: "source_length"}
    example = [torch.ones(2, 11, dtype=torch.int64), language.example_ids(2, 4), torch.randn(2, 11, 512)]
    axes = [source, language.TEXT, source]
    parts = [path.with_name(f"{part}.onnx") for part in ("first", "later")]
    made = ["logits", *(f"present.{kind}" for kind in kinds)]
    export(model, example, parts[0], given, made, axes, forward=first)
    held = ({0: "batch", 2: "past_length"},) * 2 + ({0: "batch", 2: "source_length"},) * 2
    # Each one its own: what is given twice is one input to the exporter.
    past = [tuple(torch.randn(2, 8, length, 64) for length in (5, 5, 11, 11)) for _ in range(language.LAYERS)]
    export(
        model,
        [*example, past],
        parts[1],
        [*given, *(f"past_key_values.{kind}" for kind in kinds)],
        [name for name in made if ".encoder." not in name],
        [*axes, [held] * language.LAYERS],
        forward=later,
    )
    merge(path, *parts)
    for part in parts:
        part.unlink()
        part.with_name(f"{part.name}.data").unlink()

    def feeds(batch: int, sequence: int, length: int, before: int) -> Feeds:
        caches = {
            f"past_key_values.{kind}": normal(
                batch, 8, length if "encoder" in kind else max(before, 1), 64, seed=20 + number
            )
            for number, kind in enumerate(kinds)
        }
        return {
            "encoder_attention_mask": padded(batch, length),
            "input_ids": tokens(2056, batch, sequence),
            "encoder_hidden_states": normal(batch, length, 512),
            **caches,
            "use_cache_branch": np.array([before > 0]),
        }

    save_feeds(path, feeds(2, 1, 16, 9), feeds(1, 6, 5, 0))


def merge(path: Path, first: Path, later: Path) -> None:
    """Writes one model of two. For what ``first`` alone gives, the other branch has an empty array."""
    import onnx

    branches = [onnx.load(file) for file in (later, first)]
    weights: dict[str, onnx.TensorProto] = {}
    for branch, mark in zip(branches, ("later", "first"), strict=True):
        _mark(branch.graph, mark)
        _share_weights(branch.graph, mark, weights)
    inputs = list(branches[0].graph.input)
    outputs = [_open(value) for value in branches[1].graph.output]
    made = {value.name for value in branches[0].graph.output}
    nothing = []
    for value in branches[1].graph.output:
        if value.name in made:
            continue
        # What does not change is not given again: an array without elements stands for it.
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        empty = np.zeros([0, shape[1], 1, shape[3]], np.float32)
        nothing.append((value.name, onnx.numpy_helper.from_array(empty, f"{value.name}/none")))
    for branch, mark in zip(branches, ("later", "first"), strict=True):
        _as_branch(branch.graph, mark, [value.name for value in outputs], nothing if mark == "later" else [])
    flag = onnx.helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1])
    node = onnx.helper.make_node(
        "If",
        ["use_cache_branch"],
        [value.name for value in outputs],
        name="optimum::if",
        then_branch=branches[0].graph,
        else_branch=branches[1].graph,
    )
    graph = onnx.helper.make_graph([node], "merged", [*inputs, flag], outputs, [*weights.values()])
    model = onnx.helper.make_model(graph, opset_imports=branches[0].opset_import)
    model.ir_version = branches[0].ir_version
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=1024)


def _mark(graph: onnx.GraphProto, mark: str) -> None:
    """Renames what a graph computes: exporters give the same names to other values in the other graph."""
    names = {name: f"{mark}/{name}" for node in graph.node for name in node.output if name}
    for node in graph.node:
        for held in (node.input, node.output):
            held[:] = [names.get(name, name) for name in held]


def _share_weights(graph: onnx.GraphProto, mark: str, weights: dict[str, onnx.TensorProto]) -> None:
    """Moves a graph's weights out of it; equal ones become one."""
    renamed = {}
    for tensor in graph.initializer:
        content = hashlib.sha256(tensor.raw_data or tensor.SerializeToString()).hexdigest()
        key = f"{tensor.data_type} {list(tensor.dims)} {content}"
        if key not in weights:
            shared = weights[key] = type(tensor)()
            shared.CopyFrom(tensor)
            if any(other.name == tensor.name for name, other in weights.items() if name != key):
                shared.name = f"{tensor.name}/{mark}"
        renamed[tensor.name] = weights[key].name
    del graph.initializer[:]
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]


def _open(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """The output of both branches: where lengths have names, they may differ."""
    made = type(value)()
    made.CopyFrom(value)
    for place, dim in enumerate(made.type.tensor_type.shape.dim):
        if not dim.HasField("dim_value"):
            dim.dim_param = f"{value.name}/{place}"
    return made


def _as_branch(
    graph: onnx.GraphProto, mark: str, outputs: list[str], constants: list[tuple[str, onnx.TensorProto]]
) -> None:
    """Makes a graph one without inputs that reads those around it, and gives these outputs in this order."""
    import onnx

    types = {value.name: value for value in graph.output}
    for name, tensor in constants:
        graph.node.append(onnx.helper.make_node("Constant", [], [f"{mark}/{name}"], value=tensor))
        types[name] = onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
    del graph.input[:], graph.output[:], graph.value_info[:]
    for name in outputs:
        value = graph.output.add()
        value.CopyFrom(types[name])
        value.name = f"{mark}/{name}"
    graph.name = mark


BUILDERS = {"t5_merged": t5_merged}
