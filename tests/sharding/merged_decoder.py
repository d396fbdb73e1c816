"""A decoder as exporters merge two of them: one `If` over the prompt's and the next token's graph.

Both branches share the weights. The first has no past, and gives whole caches; the second appends to them,
and gives empty ones for what does not change (the caches of the encoder's output).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

HIDDEN, HEADS, SIZE, LAYERS, VOCABULARY = 48, 12, 4, 2, 60

_HEADER = '<ir_version: 9, opset_import: ["" : 18]>\n'


def _attention(layer: int, prefix: str, *, past: bool, cross: bool, source: str) -> str:
    """Text of an attention: its result is ``{prefix}o``, its caches are ``{prefix}k`` and ``{prefix}v``."""
    p, kind = prefix, "cross" if cross else "self"
    weights = {name: f"{kind}{layer}_{name}" for name in "qkvo"}
    lines = [
        f"{p}q0 = MatMul({source}, {weights['q']})",
        f"{p}q1 = Reshape({p}q0, split)",
        f"{p}q = Transpose<perm = [0, 2, 1, 3]>({p}q1)",
    ]
    if cross and past:
        lines += [f"{p}k = Identity(past_{layer}_ck)", f"{p}v = Identity(past_{layer}_cv)"]
    else:
        for name in "kv":
            whence = "encoded" if cross else source
            new = f"{p}{name}" + ("n" if past else "")
            lines += [
                f"{p}{name}0 = MatMul({whence}, {weights[name]})",
                f"{p}{name}1 = Reshape({p}{name}0, split)",
                f"{new} = Transpose<perm = [0, 2, 1, 3]>({p}{name}1)",
            ]
            if past:
                lines.append(f"{p}{name} = Concat<axis = 2>(past_{layer}_{name}, {new})")
    lines += [
        f"{p}kt = Transpose<perm = [0, 1, 3, 2]>({p}k)",
        f"{p}s = MatMul({p}q, {p}kt)",
        f"{p}a = Softmax<axis = -1>({p}s)",
        f"{p}c = MatMul({p}a, {p}v)",
        f"{p}ct = Transpose<perm = [0, 2, 1, 3]>({p}c)",
        f"{p}cm = Reshape({p}ct, merge)",
        f"{p}o0 = MatMul({p}cm, {weights['o']})",
        f"{p}o = Add({source}, {p}o0)",
    ]
    return "\n".join(lines)


def _branch(name: str, outputs: list[str], *, past: bool, tied: bool) -> str:
    lines, source = [f"{name}h = Gather(embedding, ids)"], f"{name}h"
    for layer in range(LAYERS):
        own, other = f"{name}{layer}s", f"{name}{layer}c"
        lines.append(_attention(layer, own, past=past, cross=False, source=source))
        lines.append(_attention(layer, other, past=past, cross=True, source=f"{own}o"))
        lines += [
            f"{name}{layer}u = MatMul({other}o, up{layer})",
            f"{name}{layer}r = Relu({name}{layer}u)",
            f"{name}{layer}d = MatMul({name}{layer}r, down{layer})",
            f"{name}{layer}h = Add({other}o, {name}{layer}d)",
        ]
        source = f"{name}{layer}h"
    if tied:
        lines.append(f"{name}head = Transpose<perm = [1, 0]>(embedding)")
    lines.append(f"{name}scores = MatMul({source}, {name if tied else ''}head)")
    made = [f"{name}scores"]
    for layer in range(LAYERS):
        for kind in ("k", "v"):
            made.append(f"{name}{layer}s{kind}")
        for kind in ("ck", "cv"):
            if past:  # unchanged: an empty one stands for it
                lines.append(f"{name}{layer}n{kind} = Identity(none)")
                made.append(f"{name}{layer}n{kind}")
            else:
                made.append(f"{name}{layer}c{kind[1]}")
    types = [f"float[b, n, {VOCABULARY}]"] + [f"float[b2, {HEADS}, m, {SIZE}]"] * (len(made) - 1)
    lines += [f"{name}_{output} = Identity({value})" for output, value in zip(outputs, made, strict=True)]
    heads = ", ".join(f"{kind} {name}_{output}" for output, kind in zip(outputs, types, strict=True))
    return f"{name} () => ({heads}) {{\n" + "\n".join(lines) + "\n}"


def outputs() -> list[str]:
    """The names of the outputs."""
    return ["logits"] + [
        f"present_{layer}_{kind}" for layer in range(LAYERS) for kind in ("k", "v", "ck", "cv")
    ]


def build(path: Path, *, copies: bool = False, tied: bool = False) -> Path:
    """Writes the model. ``copies``: the second branch has weights of its own, equal to those of the first.
    ``tied``: the head is the embedding, transposed."""
    caches = [f"past_{layer}_{kind}" for layer in range(LAYERS) for kind in ("k", "v", "ck", "cv")]
    given = ", ".join(
        f"float[b, {HEADS}, {'m' if 'c' in name[-2:] else 'p'}, {SIZE}] {name}" for name in caches
    )
    made = ", ".join(
        f"float[b, n, {VOCABULARY}] {name}" if name == "logits" else f"float[b2, {HEADS}, q, {SIZE}] {name}"
        for name in outputs()
    )
    text = f"""{_HEADER}merged (
        int64[b, n] ids, float[b, m, {HIDDEN}] encoded, {given}, bool[1] use_cache_branch
      ) => ({made}) {{
      {", ".join(outputs())} = If (use_cache_branch) <
        then_branch = {_branch("with", outputs(), past=True, tied=tied)},
        else_branch = {_branch("first", outputs(), past=False, tied=tied)}
      >
    }}"""
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(3)

    def weight(*shape: int) -> np.ndarray[Any, Any]:
        return (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    weights = {"embedding": weight(VOCABULARY, HIDDEN)}
    if not tied:
        weights["head"] = weight(HIDDEN, VOCABULARY)
    for layer in range(LAYERS):
        weights.update(
            {f"{kind}{layer}_{name}": weight(HIDDEN, HIDDEN) for kind in ("self", "cross") for name in "qkvo"}
        )
        weights[f"up{layer}"], weights[f"down{layer}"] = (
            weight(HIDDEN, 4 * HIDDEN),
            weight(4 * HIDDEN, HIDDEN),
        )
    small = {
        "split": np.array([0, 0, HEADS, SIZE]),
        "merge": np.array([0, 0, HIDDEN]),
        "none": np.zeros((0, HEADS, 1, SIZE), np.float32),
    }
    for name, array in {**weights, **small}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    if copies:
        (node,) = model.graph.node
        body = next(item.g for item in node.attribute if item.name == "else_branch")
        read = {name for inner in body.node for name in inner.input}
        body.initializer.extend(
            numpy_helper.from_array(array, f"{name}_copy") for name, array in weights.items() if name in read
        )
        for inner in body.node:
            for index, name in enumerate(inner.input):
                if name in weights:
                    inner.input[index] = f"{name}_copy"
    path.write_bytes(model.SerializeToString())
    return path


def feeds(*, past: bool, length: int = 3, batch: int = 2, memory: int = 5) -> dict[str, Any]:
    """Inputs of the first step, or of one after four tokens."""
    random = np.random.default_rng(length)

    def cache(length: int) -> np.ndarray[Any, Any]:
        return random.standard_normal((batch, HEADS, length, SIZE)).astype(np.float32)

    given: dict[str, Any] = {
        "ids": random.integers(0, VOCABULARY, (batch, length)),
        "encoded": random.standard_normal((batch, memory, HIDDEN)).astype(np.float32),
        "use_cache_branch": np.array([past]),
    }
    for layer in range(LAYERS):
        for kind in ("k", "v"):
            given[f"past_{layer}_{kind}"] = cache(4 if past else 1)
            given[f"past_{layer}_c{kind}"] = cache(memory)
    return given
