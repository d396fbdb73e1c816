"""Settings of MindIR's primitives that differ from axis to axis, and operands larger than what is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.errors import ModelError
from sharding.importers import import_model
from sharding.importers.mindir.tracing.program import Program
from tests.sharding import graphs
from tests.sharding.importers.mindir_files import File

torch = pytest.importorskip("torch", reason="torch, which answers, is missing")
Array = np.ndarray[Any, Any]


def run(folder: Path, kind: str, *operands: Any, shape: tuple[int, ...], **attributes: Any) -> Array:
    """What a primitive gives for arrays, which are fed, and for other values, which the file holds."""
    file = File()
    fed = {f"x{place}": item for place, item in enumerate(operands) if isinstance(item, np.ndarray)}
    graph = file.graph("main", *[(name, item.dtype.name, item.shape) for name, item in fed.items()])
    given = [
        graph[f"x{place}"] if f"x{place}" in fed else graph.const(item) for place, item in enumerate(operands)
    ]
    graph.gives(graph.prim(kind, *given, types=(("float32", shape),), **attributes))
    session = graphs.session(import_model(file.save(folder / "one.mindir")))
    names = [item.name for item in session.get_inputs()]
    (answer,) = session.run(None, dict(zip(names, fed.values(), strict=True)))
    assert isinstance(answer, np.ndarray) and answer.shape == shape
    return answer


def test_windows_with_a_setting_for_each_axis(tmp_path: Path) -> None:
    """Kernel, step, gap and padding of the height are none of the width's."""
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 9)).astype(np.float32)
    (high, wide), (steps, gaps), (top, left) = (2, 3), ((2, 1), (1, 2)), (1, 3)
    places = (4, 6)
    moves = np.zeros((2, 3 * high * wide, *places), np.float32)
    moves[:, : high * wide] = 1  # along the width
    moves[:, 2 * high * wide :] = 0.5  # the weights
    wanted = np.zeros((2, 3, places[0] * high, places[1] * wide), np.float32)
    for row in range(wanted.shape[2]):
        for column in range(wanted.shape[3]):
            i = row // high * steps[0] + row % high * gaps[0] - top
            j = column // wide * steps[1] + column % wide * gaps[1] - left + 1
            if 0 <= i < 7 and 0 <= j < 9:
                wanted[:, :, row, column] = 0.5 * x[:, :, i, j]
    found = run(
        tmp_path, "DeformableOffsets", x, moves, shape=wanted.shape,
        ksize=(high, wide), strides=(1, 1, *steps), dilations=(1, 1, *gaps), pads=(top, 0, left, 0),
        deformable_groups=1, data_format="NCHW", modulated=True,
    )  # fmt: skip
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("outside", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_samples_of_a_grid(mode: str, outside: str, corners: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((2, 3, 5, 6)).astype(np.float32)
    grid = random.uniform(-1.4, 1.4, (2, 4, 3, 2)).astype(np.float32)
    wanted = torch.nn.functional.grid_sample(
        torch.from_numpy(x), torch.from_numpy(grid), mode, outside, align_corners=corners
    )
    found = run(
        tmp_path, "GridSampler2D", x, grid, shape=(2, 3, 4, 3),
        interpolation_mode=mode, padding_mode=outside, align_corners=corners,
    )  # fmt: skip
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["trilinear", "linear"])
def test_a_grid_with_a_mode_that_there_is_not(mode: str, tmp_path: Path) -> None:
    x, grid = np.ones((1, 1, 2, 2), np.float32), np.zeros((1, 2, 2, 2), np.float32)
    with pytest.raises(ModelError, match=mode):
        run(
            tmp_path, "GridSampler2D", x, grid, shape=(1, 1, 2, 2),
            interpolation_mode=mode, padding_mode="zeros", align_corners=False,
        )  # fmt: skip


@pytest.mark.parametrize("larger", [(0, 0), (1, 0), (0, 2), (2, 3)])
@pytest.mark.parametrize("axis", [0, 1])
def test_more_updates_than_indices(axis: int, larger: tuple[int, int], tmp_path: Path) -> None:
    """Those in the corner where the indices are count."""
    random = np.random.default_rng(2)
    x = random.standard_normal((4, 5)).astype(np.float32)
    index = random.integers(0, 4, (2, 3)).astype(np.int64)
    src = random.standard_normal((2 + larger[0], 3 + larger[1])).astype(np.float32)
    wanted = torch.from_numpy(x).scatter_add(axis, torch.from_numpy(index), torch.from_numpy(src))
    found = run(tmp_path, "ScatterAddExt", x, axis, index, src, shape=(4, 5))
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-6)


@pytest.mark.parametrize("after", [True, False, None])
def test_a_gru_resets_before_or_after_its_product(after: bool | None, tmp_path: Path) -> None:
    """After it, unless the file says otherwise."""
    random = np.random.default_rng(3)
    x, w, r = (random.standard_normal(size).astype(np.float32) for size in ((3, 2, 4), (4, 15), (5, 15)))
    state, wanted = np.zeros((2, 5), np.float32), []

    def sigmoid(value: Array) -> Array:
        return 1 / (1 + np.exp(-value))

    for step in x:
        given, kept = step @ w, state @ r
        reset = sigmoid(given[:, :5] + kept[:, :5])
        update = sigmoid(given[:, 5:10] + kept[:, 5:10])
        hidden = (reset * state) @ r[:, 10:] if after is False else reset * kept[:, 10:]
        state = (1 - update) * np.tanh(given[:, 10:] + hidden) + update * state
        wanted.append(state)
    said = {} if after is None else {"reset_after": after}
    found = run(tmp_path, "DynamicGRUV2", x, w, r, shape=(3, 2, 5), gate_order="rzh", **said)
    np.testing.assert_allclose(found, np.stack(wanted), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("layer", "named"), [("Default/head-op7", "Default/head-op7"), ("", "ReLU")])
def test_what_is_converted_has_the_name_of_its_layer(layer: str, named: str, tmp_path: Path) -> None:
    """Or of its primitive, where the file names no layer."""
    file = File()
    graph = file.graph("main", ("x", "float32", (2, 3)))
    found = graph.prim("ReLU", graph["x"], types=(("float32", (2, 3)),))
    graph.message.node[-1].domain = layer
    graph.gives(found)
    model = import_model(file.save(tmp_path / "one.mindir"))
    assert [node.name for node in model.graph.node if node.op_type == "Relu"] == [f"{named}/Relu"]


def test_what_the_result_of_a_graph_may_be_the_result_of(tmp_path: Path) -> None:
    """ "" where it may be a value of its own, as what a primitive gives or an input."""
    file = File()
    main, computed, given, calls, chooses = (
        file.graph(name, ("x", "float32", (2, 3)))
        for name in ("main", "computed", "given", "calls", "chooses")
    )
    main.gives(main.call("calls", main["x"]))
    computed.gives(computed.prim("ReLU", computed["x"], types=(("float32", (2, 3)),)))
    given.gives(given["x"])
    calls.gives(calls.prim("Depend", calls.call("chooses", calls["x"]), calls["x"]))
    chooses.gives(chooses.switch(chooses.const(True), "computed", chooses.partial("given", chooses["x"])))
    program = Program(file.model, tmp_path / "one.mindir")
    assert program.next_graphs == {
        "main": {"calls"},
        "computed": {""},
        "given": {""},
        "calls": {"chooses"},
        "chooses": {"computed", "given"},
    }


@pytest.mark.parametrize(("start", "length"), [(1, 2), (-2, 2), (-1, 1), (-4, 3), (0, 4)])
def test_places_along_an_axis_counted_from_both_ends(start: int, length: int, tmp_path: Path) -> None:
    """Those that end with the axis too, where the number behind the last one would be 0."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = run(tmp_path, "Narrow", x, 1, start, length, shape=(3, length))
    np.testing.assert_array_equal(found, torch.narrow(torch.from_numpy(x), 1, start, length).numpy())
