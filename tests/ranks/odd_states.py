# ruff: noqa: E501 - the models stay readable
"""State as nobody would have it: one model of many small ones, each with an oddity, and its plain answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import compose, numpy_helper, parser

HEAD = '<ir_version: 10, opset_import: ["" : 18]>\n'
ODD = {
    "names": """g (float[b,12] x, float[b,12] alpha) => (float[b,12] y, float[b,12] omega) {
        h = MatMul(x, w1) s = Add(h, alpha) omega = Tanh(s) y = MatMul(omega, w2) }""",
    "batch_behind": """g (float[b,12] x, float[3,b,12] h) => (float[b,12] y, float[3,b,12] hn) {
        u = MatMul(x, w1) v = Mul(h, half) hn = Add(v, u) m = ReduceSum<keepdims=0>(hn, zeros)
        y = MatMul(m, w2) }""",
    "swap": """g (float[b,12] x, float[b,12] a, float[b,12] c) => (float[b,12] y, float[b,12] ao, float[b,12] co) {
        h = MatMul(x, w1) co = Add(c, h) ao = Identity(a) s = Sub(a, c) y = MatMul(s, w2) }""",
    "types": """g (float[b,12] x, int64[b,1] count, bool[b,12] seen_state, float16[b,12] mem_state, double[b,12] acc_state)
        => (float[b,12] y, int64[b,1] count_out, bool[b,12] seen_state_out, float16[b,12] mem_state_out,
            double[b,12] acc_state_out) {
        h = MatMul(x, w1) hb = Greater(h, half) seen_state_out = Or(seen_state, hb) count_out = Add(count, ones)
        h16 = Cast<to=10>(h) mem_state_out = Add(mem_state, h16) h64 = Cast<to=11>(h)
        acc_state_out = Add(acc_state, h64) p = Cast<to=1>(seen_state_out) q = Cast<to=1>(count_out)
        r = Cast<to=1>(mem_state_out) t = Cast<to=1>(acc_state_out) s = Sum(p, q, r, t) y = MatMul(s, w2) }""",
    "shrinks": """g (float[b,12] x, float[b,n,12] buf) => (float[b,12] y, float[b,m,12] buf_out) {
        h = MatMul(x, w1) s = Slice(buf, ones, big, ones) buf_out = Slice(s, ones, big, ones)
        r = ReduceSum<keepdims=0>(buf, ones) q = Add(r, h) y = MatMul(q, w2) }""",
    "leftover": """g (float[b,f,12] x, float[b,n,12] tail) => (float[b,k,12] y, float[b,m,12] tail_out) {
        j = Concat<axis=1>(tail, x) sh = Shape<start=1,end=2>(j) q = Div(sh, fours) u = Mul(q, fours)
        head = Slice(j, zeros, u, ones) tail_out = Slice(j, u, sh, ones) h = MatMul(head, w1) y = MatMul(h, w2) }""",
    "window": """g (float[b,12] x, float[b,5,12] win) => (float[b,12] y, float[b,5,12] win_out) {
        h = MatMul(x, w1) u = Unsqueeze(h, ones) j = Concat<axis=1>(win, u) win_out = Slice(j, ones, big, ones)
        r = ReduceSum<keepdims=0>(j, ones) y = MatMul(r, w2) }""",
    "scalar": """g (float[b,12] x, float total) => (float[b,12] y, float total_out) {
        h = MatMul(x, w1) m = ReduceMean<keepdims=0>(h) total_out = Add(total, m) k = Add(h, total_out)
        y = MatMul(k, w2) }""",
    "answer_too": """g (float[b,12] x, float[b,12] h) => (float[b,12] y, float[b,12] z) {
        u = MatMul(x, w1) s = Add(u, h) y = Tanh(s) z = MatMul(y, w2) }""",
    "constant": """g (float[b,12] x, float[1,12] state) => (float[b,12] y, float[1,12] state_out) {
        h = MatMul(x, w1) k = Add(h, state) y = MatMul(k, w2) state_out = Identity(c1) }""",
    "delayed": """g (float[b,12] x, float[b,12] state_xx) => (float[b,12] y, float[b,12] state_xx_out) {
        d = Sub(x, state_xx) h = MatMul(d, w1) y = MatMul(h, w2) state_xx_out = Identity(x) }""",
    "no_rank": """g (float[b,12] x, float[b,12] state) => (float[b,12] y, float[b,12] state_out) {
        h = MatMul(x, w1) state_out = Add(state, h) y = MatMul(state_out, w2) }""",
}  # fmt: skip
"""Of models without control flow."""
CONTROL = {
    "through_if": """g (float[b,12] x, bool flag, float[b,12] state) => (float[b,12] y, float[b,12] state_out) {
        state_out = If(flag) <then_branch = a () => (float[b,12] t) { h = MatMul(x, w1) s = Add(state, h) t = Tanh(s) },
                           else_branch = e () => (float[b,12] o) { k = MatMul(state, w2) o = Relu(k) }>
        y = MatMul(state_out, w3) }""",
    "kept_by_if": """g (float[b,12] x, bool flag, float[b,12] state) => (float[b,12] y, float[b,12] state_out) {
        h = MatMul(x, w1)
        state_out = If(flag) <then_branch = a () => (float[b,12] t) { t = Add(state, h) },
                           else_branch = e () => (float[b,12] o) { o = Identity(state) }>
        y = MatMul(state_out, w2) }""",
    "through_loop": """g (float[f,12] x, float[12] state) => (float[f,12] y, float[12] state_out) {
        n0 = Shape<start=0,end=1>(x) n = Squeeze(n0)
        state_out, ys = Loop(n, , state) <body = bd (int64 i, bool go, float[12] s) => (bool on, float[12] t, float[12] o) {
            on = Identity(go) xi = Gather(x, i) u = Add(s, xi) t = Tanh(u) o = Identity(t) }>
        y = MatMul(ys, w1) }""",
}  # fmt: skip
SAID = {
    "names.alpha": "names.omega", "batch_behind.h": "batch_behind.hn", "swap.a": "swap.co", "swap.c": "swap.ao",
    "types.count": "types.count_out", "shrinks.buf": "shrinks.buf_out", "leftover.tail": "leftover.tail_out",
    "window.win": "window.win_out", "scalar.total": "scalar.total_out", "answer_too.h": "answer_too.y",
}  # fmt: skip
"""Pairs that names do not tell."""
FOUND = {
    **{f"types.{name}_state": f"types.{name}_state_out" for name in ("seen", "mem", "acc")},
    "constant.state": "constant.state_out", "delayed.state_xx": "delayed.state_xx_out",
    "no_rank.state": "no_rank.state_out", "through_if.state": "through_if.state_out",
    "kept_by_if.state": "kept_by_if.state_out", "through_loop.state": "through_loop.state_out",
}  # fmt: skip
BROUGHT = {"shrinks.buf": (2, 20, 12), "leftover.tail": (2, 0, 12), "no_rank.state": (2, 12)}
"""State whose first value nothing tells: its shape."""
_TYPES = {
    "tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": bool,
    "tensor(float16)": np.float16, "tensor(double)": np.float64,
}  # fmt: skip


def save(path: Path, texts: Mapping[str, str]) -> None:
    """One model of all of these."""
    random = np.random.default_rng(2)
    whole: onnx.GraphProto | None = None
    for name, text in texts.items():
        model = parser.parse_model(HEAD + text)
        arrays: dict[str, Any] = {
            f"w{n}": (random.standard_normal((12, 12)) * 0.2).astype(np.float32) for n in (1, 2, 3)
        }
        arrays |= {f"{word}s": np.array([n]) for word, n in {"zero": 0, "one": 1, "four": 4}.items()}
        arrays |= {"big": np.array([2**31 - 1]), "half": np.array([0.5], np.float32)}
        arrays["c1"] = random.standard_normal((1, 12)).astype(np.float32)
        model.graph.initializer.extend(
            numpy_helper.from_array(array, key)
            for key, array in arrays.items()
            if f"{key})" in text or f"{key}," in text
        )
        if name == "no_rank":
            for value in (model.graph.input[1], model.graph.output[1]):
                value.type.tensor_type.ClearField("shape")
        prefixed = _prefixed(model.graph, f"{name}.")
        whole = prefixed if whole is None else compose.merge_graphs(whole, prefixed, [])
    assert whole is not None
    opsets = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(whole, opset_imports=opsets, ir_version=10), path)


def _prefixed(graph: onnx.GraphProto, prefix: str) -> onnx.GraphProto:
    """The graph with all names of values begun so, in bodies too."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = prefix + value.name
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [prefix + name if name else "" for name in names]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _prefixed(attribute.g, prefix)
    return graph


class Plain:
    """Plain ONNX Runtime on the whole model, its state carried from step to step by hand."""

    def __init__(self, path: Path) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        self.outputs = [value.name for value in self.session.get_outputs()]
        self.pairs = {taken: made for taken, made in {**SAID, **FOUND}.items() if taken in self.inputs}
        random = np.random.default_rng(3)
        self.brought = {
            name: random.standard_normal(shape).astype(np.float32)
            for name, shape in BROUGHT.items()
            if name in self.inputs
        }
        self.state = {}
        for name in self.pairs:
            value = self.inputs[name]
            shape = [2 if dim == "b" else dim for dim in value.shape]
            if name not in self.brought:
                self.state[name] = np.zeros(shape, _TYPES[value.type])
        self.state |= self.brought

    def feeds(self, step: int) -> dict[str, Any]:
        """What a step is fed besides state."""
        random = np.random.default_rng(10 + step)
        found: dict[str, Any] = {}
        for name, value in self.inputs.items():
            if name in self.pairs:
                continue
            frames = {"leftover.x": (2, 7, 12), "through_loop.x": (1 + step % 3, 12)}.get(name, (2, 12))
            flag = np.array(step % 3 != 1)
            values = random.standard_normal(frames).astype(np.float32)
            found[name] = flag if value.type == "tensor(bool)" else values
        return found

    def step(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs that are no state."""
        found = dict(zip(self.outputs, self.session.run(None, {**feeds, **self.state}), strict=True))
        self.state = {taken: found[made] for taken, made in self.pairs.items()}
        return {name: array for name, array in found.items() if name not in self.pairs.values()}
