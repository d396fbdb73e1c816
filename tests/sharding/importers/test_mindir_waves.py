"""Transforms and recurrent layers of older MindIR files, as torch computes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.errors import ModelError
from sharding.importers import import_model
from tests.sharding import graphs
from tests.sharding.importers.mindir_files import File

torch = pytest.importorskip("torch", reason="torch, which answers, is missing")
Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(5)
REAL = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
IMAGINARY = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)


def run(
    folder: Path, kind: str, *operands: Any, pair: bool = False, gives: str = "", **settings: Any
) -> Array:
    """``pair``: the first two operands are the parts of one of complex numbers; ``gives``: what is done with
    the result."""
    file = File()
    fed = [item for item in operands if isinstance(item, np.ndarray)]
    graph = file.graph("main", *((f"x{i}", item.dtype.name, item.shape) for i, item in enumerate(fed)))
    names = iter([graph[f"x{i}"] for i in range(len(fed))])
    given = [next(names) if isinstance(item, np.ndarray) else graph.const(item) for item in operands]
    if pair:
        given[:2] = [graph.prim("Complex", *given[:2])]
    found = graph.prim(kind, *given, **settings)
    if gives == "first":
        found = graph.prim("TupleGetItem", found, graph.const(0))
    elif gives:
        found = graph.prim(gives, found)
    graph.gives(found)
    session = graphs.session(import_model(file.save(folder / "waves.mindir")))
    (answer,) = session.run(None, {f"x{i}": item for i, item in enumerate(fed)})
    return np.asarray(answer)


def near(found: Array, wanted: Any) -> None:
    wanted = wanted.numpy()
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("norm", ["backward", "forward", "ortho"])
def test_transforms_along_the_last_axes(axes: int, norm: str, tmp_path: Path) -> None:
    places = tuple(range(-axes, 0))
    settings: dict[str, Any] = {"signal_ndim": axes, "norm": norm, "signal_sizes": ()}
    x = torch.complex(torch.from_numpy(REAL), torch.from_numpy(IMAGINARY))
    for inverse, wanted in ((False, torch.fft.fftn), (True, torch.fft.ifftn)):
        found = run(
            tmp_path, "FFTWithSize", REAL, IMAGINARY, pair=True, gives="ViewAsReal",
            inverse=inverse, real=False, onesided=True, **settings,
        )  # fmt: skip
        near(found, torch.view_as_real(wanted(x, dim=places, norm=norm)))
    real = torch.from_numpy(REAL)
    for onesided, wanted in ((True, torch.fft.rfftn), (False, torch.fft.fftn)):
        found = run(
            tmp_path, "FFTWithSize", REAL, gives="ViewAsReal", inverse=False, real=True, onesided=onesided,
            **settings,
        )  # fmt: skip
        near(found, torch.view_as_real(wanted(real, dim=places, norm=norm)))
    half = torch.fft.rfftn(real, dim=places, norm=norm)
    parts = [item.numpy().copy() for item in (half.real, half.imag)]
    for sizes in ((), REAL.shape[-axes:]):
        found = run(
            tmp_path, "FFTWithSize", *parts, pair=True, inverse=True, real=True, onesided=True,
            **settings | {"signal_sizes": sizes},
        )  # fmt: skip
        near(found, real)


def test_numbers_of_two_parts(tmp_path: Path) -> None:
    x = torch.complex(torch.from_numpy(REAL), torch.from_numpy(IMAGINARY))
    near(run(tmp_path, "ComplexAbs", REAL, IMAGINARY, pair=True), x.abs())
    near(run(tmp_path, "Angle", REAL), torch.angle(torch.from_numpy(REAL)))
    odd = np.float32([np.nan, -0.5, 0, 2])
    near(run(tmp_path, "Angle", odd), torch.angle(torch.from_numpy(odd)))
    wide = np.float32([[1], [2]])
    found = run(tmp_path, "Complex", wide, odd[1:], gives="ViewAsReal")
    near(found, torch.view_as_real(torch.complex(*map(torch.from_numpy, np.broadcast_arrays(wide, odd[1:])))))


def _lstm(x: Array, w: Array, bias: Array, forget: float) -> Array:
    """Gates i, g, f, o of (input, hidden) times one matrix."""
    hidden = w.shape[1] // 4
    h = c = np.zeros((x.shape[1], hidden), np.float32)
    states = []
    for step in x:
        i, g, f, o = np.split(np.concatenate([step, h], 1) @ w + bias, 4, 1)
        c = c / (1 + np.exp(-f - forget)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        states.append(h)
    return np.stack(states)


@pytest.mark.parametrize("forget", [0.0, 1.5])
def test_a_dynamic_lstm(forget: float, tmp_path: Path) -> None:
    x = RANDOM.standard_normal((5, 2, 3)).astype(np.float32)
    w, bias = (RANDOM.standard_normal(shape).astype(np.float32) / 2 for shape in ((3 + 4, 16), (16,)))
    found = run(tmp_path, "DynamicRNN", x, w, bias, gives="first", forget_bias=forget)
    near(found, torch.from_numpy(_lstm(x, w, bias, forget)))


@pytest.mark.parametrize("order", ["rzh", "zrh"])
@pytest.mark.parametrize("after", [True, False])
def test_a_dynamic_gru(order: str, after: bool, tmp_path: Path) -> None:
    x = RANDOM.standard_normal((5, 2, 3)).astype(np.float32)
    w, r = (RANDOM.standard_normal(shape).astype(np.float32) / 2 for shape in ((3, 12), (4, 12)))
    one, other = (RANDOM.standard_normal(12).astype(np.float32) for _ in range(2))
    h, states = np.zeros((2, 4), np.float32), []
    at = {gate: slice(4 * place, 4 * place + 4) for place, gate in enumerate(order)}
    for step in x:
        a, c = step @ w + one, h @ r + other
        gate = {name: 1 / (1 + np.exp(-(a + c)[:, at[name]])) for name in "rz"}
        if after:
            new = np.tanh(a[:, at["h"]] + gate["r"] * c[:, at["h"]])
        else:
            new = np.tanh(a[:, at["h"]] + (gate["r"] * h) @ r[:, at["h"]] + other[at["h"]])
        h = (1 - gate["z"]) * new + gate["z"] * h
        states.append(h)
    found = run(
        tmp_path, "DynamicGRUV2", x, w, r, one, other, gives="first", gate_order=order, reset_after=after
    )
    near(found, torch.from_numpy(np.stack(states)))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"direction": "BIDIRECTIONAL"},
            "direction 'BIDIRECTIONAL' has no conversion; only 'UNIDIRECTIONAL' has",
        ),
        ({"time_major": False}, "time_major False has no conversion; only True has"),
        ({"num_proj": 2}, "num_proj 2 has no conversion"),
        ({"activation": "relu"}, "activation 'relu' has no conversion"),
    ],
)
@pytest.mark.parametrize("kind", ["DynamicRNN", "DynamicGRUV2"])
def test_settings_that_have_no_conversion(kind: str, settings: Any, why: str, tmp_path: Path) -> None:
    x, w, more = np.ones((5, 2, 3), np.float32), np.ones((7, 16), np.float32), np.ones(16, np.float32)
    with pytest.raises(ModelError, match=why):
        run(tmp_path, kind, x, w, more, gives="first", **settings)
