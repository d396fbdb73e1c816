"""Layers of MindIR in forms that networks seldom have: the channels last, weights left out, numbers of axes
that only a run tells. Torch answers, and numpy for Fourier transforms and complex numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sharding.importers.mindir_runs import Made, open_axes, open_lengths, run

torch = pytest.importorskip("torch", reason="torch, which answers, is missing")
F = torch.nn.functional
Array = np.ndarray[Any, Any]
DRAWN = np.random.default_rng(7)


def drawn(*shape: int) -> Array:
    return DRAWN.standard_normal(shape).astype(np.float32)


IMAGE, WEIGHT = drawn(2, 4, 7, 6), drawn(3, 4, 3, 2)
ROWS = drawn(3, 4)
TARGET = DRAWN.uniform(0.1, 0.9, (3, 4)).astype(np.float32)


def near(found: Any, wanted: Any, rtol: float = 1e-4) -> None:
    wanted = wanted.numpy() if hasattr(wanted, "numpy") else np.asarray(wanted)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=2e-5)


def t(array: Array) -> Any:
    return torch.from_numpy(np.ascontiguousarray(array))


def last(image: Any) -> Any:
    """With the channels last."""
    return np.moveaxis(np.asarray(image), 1, -1)


def only(found: list[Array]) -> Array:
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("pads", [None, (1, 0, 2, 1), (1,)])
def test_a_convolution_with_the_channels_last(pads: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"stride": (1, 1, 2, 1), "format": "NHWC"}
    top, bottom, left, right = (0,) * 4 if pads is None else pads * (4 // len(pads))
    if pads is not None:
        settings |= {"pad_mode": "pad", "pad": pads}
    wide = F.pad(t(IMAGE), (left, right, top, bottom))
    found = only(run(tmp_path, "Conv2D", last(IMAGE), last(WEIGHT), **settings))
    near(found, last(F.conv2d(wide, t(WEIGHT), stride=(2, 1))))


def test_each_channel_alone(tmp_path: Path) -> None:
    weight = drawn(2, 4, 3, 2)
    found = only(run(tmp_path, "DepthwiseConv2dNative", IMAGE, weight, stride=(2, 1), dilation=(1, 2)))
    own = t(weight.transpose(1, 0, 2, 3)).reshape(8, 1, 3, 2)
    near(found, F.conv2d(t(IMAGE), own, stride=(2, 1), dilation=(1, 2), groups=4))


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_transposed_convolution_that_is_cut_at_the_end(cut: int, tmp_path: Path) -> None:
    """Shorter than all that its windows reach, where its padding is given."""
    x, weight = drawn(1, 2, 4, 3), drawn(2, 3, 3, 3)
    shape = (1, 3, 9 - cut, 7 - cut)
    settings: dict[str, Any] = {"stride": (2, 2), "pad_mode": "valid"}
    found = only(run(tmp_path, "Conv2DBackpropInput", x, weight, shape, **settings))
    near(found, F.conv_transpose2d(t(x), t(weight), stride=2)[:, :, : shape[2], : shape[3]])


@pytest.mark.parametrize("kind", ["Conv2DTranspose", "Conv2DBackpropInput"])
def test_a_transposed_convolution_whose_lengths_the_file_says(kind: str, tmp_path: Path) -> None:
    """As the result's shape, or as a constant tensor."""
    x, weight = drawn(1, 2, 4, 3), drawn(2, 3, 3, 3)
    wanted = F.conv_transpose2d(t(x), t(weight), stride=2, output_padding=(1, 0))
    settings: dict[str, Any] = {"stride": (2, 2), "pad_mode": "valid"}
    types = (("float32", (1, 3, 10, 7)),)
    near(only(run(tmp_path, kind, x, weight, None, types=types, **settings)), wanted)
    shape = Made("TupleToTensor", (1, 3, 10, 7))
    near(only(run(tmp_path, kind, x, weight, shape, **settings)), wanted)
    near(only(run(tmp_path, kind, x, weight, Made("TupleToTensor", (10, 7)), **settings)), wanted)


def test_batches_with_the_channels_last(tmp_path: Path) -> None:
    scale, bias, mean = drawn(4), drawn(4), drawn(4)
    variance = np.abs(drawn(4)) + 0.5
    found = run(tmp_path, "BatchNorm", last(IMAGE), scale, bias, mean, variance, False, 1e-3, 0.1, "NHWC")
    wanted = F.batch_norm(t(IMAGE), t(mean), t(variance), t(scale), t(bias), eps=1e-3)
    near(found[0], last(wanted))
    found = run(tmp_path, "BatchNorm", last(IMAGE), scale, bias, mean, variance, True, 1e-3, 0.1, "NHWC")
    near(found[0], last(F.batch_norm(t(IMAGE), None, None, t(scale), t(bias), training=True, eps=1e-3)))


def test_weights_that_are_left_out(tmp_path: Path) -> None:
    found = run(tmp_path, "LayerNormExt", IMAGE, (7, 6))
    near(found[0], F.layer_norm(t(IMAGE), (7, 6)))
    found = run(tmp_path, "LayerNormExt", IMAGE, (6,), None, drawn(6) * 0 + 2)
    near(found[0], F.layer_norm(t(IMAGE), (6,)) + 2)
    found = run(tmp_path, "GroupNorm", IMAGE, 2)
    near(found[0], F.group_norm(t(IMAGE), 2))
    near(found[1], IMAGE.reshape(2, 2, -1).mean(-1))
    near(found[2], 1 / np.sqrt(IMAGE.reshape(2, 2, -1).var(-1) + 1e-5))
    found = run(tmp_path, "GroupNorm", IMAGE, 4, drawn(4) * 0 + 3, None)
    near(found[0], F.group_norm(t(IMAGE), 4) * 3)


def test_norms_of_any_number_of_axes(tmp_path: Path) -> None:
    scale, bias = drawn(7, 6), drawn(7, 6)
    found = run(tmp_path, "LayerNorm", open_axes(IMAGE), scale, bias, 2, 2, 1e-5)
    near(found[0], F.layer_norm(t(IMAGE), (7, 6), t(scale), t(bias)))
    near(found[1], IMAGE.mean((2, 3), keepdims=True))
    found = run(tmp_path, "InstanceNorm", open_axes(IMAGE), drawn(4) * 0 + 2, drawn(4) * 0 + 1)
    near(found[0], F.instance_norm(t(IMAGE)) * 2 + 1)
    near(found[1], IMAGE.mean((2, 3)).reshape(-1))
    near(found[2], IMAGE.var((2, 3)).reshape(-1))


def test_pools_with_four_numbers(tmp_path: Path) -> None:
    for kind, wanted in (("MaxPool", F.max_pool2d), ("AvgPool", F.avg_pool2d)):
        found = only(run(tmp_path, kind, last(IMAGE), (1, 3, 2, 1), (1, 2, 1, 1), "valid", "NHWC"))
        near(found, last(wanted(t(IMAGE), (3, 2), (2, 1))))
        found = only(run(tmp_path, kind, IMAGE, (1, 1, 3, 2), (1, 1, 2, 1), "valid", "NCHW"))
        near(found, wanted(t(IMAGE), (3, 2), (2, 1)))


@pytest.mark.parametrize("size", [(7, 2), (None, 3), (5,), 1, (-1, 6)])
def test_as_many_windows_as_there_are_places(size: Any, tmp_path: Path) -> None:
    both = size if isinstance(size, tuple) else (size,)
    both = both * 2 if len(both) == 1 else both
    both = tuple(None if item in {None, -1} else item for item in both)
    given = tuple(-1 if item is None else item for item in size) if isinstance(size, tuple) else size
    for item in (IMAGE, open_lengths(IMAGE)):
        found = only(run(tmp_path, "AdaptiveAvgPool2D", item, given))
        near(found, F.adaptive_avg_pool2d(t(IMAGE), both))
        found = only(run(tmp_path, "AdaptiveMaxPool2D", item, given))
        near(found, F.adaptive_max_pool2d(t(IMAGE), both))


def test_exactly_half_the_error_function(tmp_path: Path) -> None:
    """With the older operators too, which have no Gelu."""
    for opset in (18, 20):
        for kind in (np.float32, np.float64):
            x = ROWS.astype(kind)
            found = only(run(tmp_path, "GeluExt", x, opset=opset))
            assert found.dtype == kind
            near(found, F.gelu(t(x)), 1e-5)


def test_doubles(tmp_path: Path) -> None:
    x = np.linspace(-4, 4, 9)
    near(only(run(tmp_path, "LeakyReLU", x, 0.2)), F.leaky_relu(t(x), 0.2), 1e-6)
    near(only(run(tmp_path, "HSigmoid", x)), F.hardsigmoid(t(x)), 1e-6)


def test_softmax_of_a_number(tmp_path: Path) -> None:
    number = np.array(3, np.float32)
    near(only(run(tmp_path, "Softmax", number, -1)), np.float32(1))
    near(only(run(tmp_path, "LogSoftmax", number, 0)), np.float32(0))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(reduction: str, tmp_path: Path) -> None:
    weight = np.abs(drawn(3, 4))
    for positive in (None, np.abs(drawn(4))):
        wanted = F.binary_cross_entropy_with_logits(
            t(ROWS), t(TARGET), t(weight), reduction=reduction,
            pos_weight=None if positive is None else t(positive),
        )  # fmt: skip
        found = run(tmp_path, "BCEWithLogitsLoss", ROWS, TARGET, weight, positive, reduction)
        near(only(found), wanted)
    for beta in (0.0, 0.5, 1.0):
        found = run(tmp_path, "SmoothL1Loss", ROWS, TARGET, beta, reduction)
        near(only(found), F.smooth_l1_loss(t(ROWS), t(TARGET), beta=beta, reduction=reduction))


def test_a_loss_for_each_row_of_the_batch(tmp_path: Path) -> None:
    logs = np.log(TARGET)
    for given in (logs, open_lengths(logs)):
        found = only(run(tmp_path, "KLDivLoss", given, TARGET + 0.1, "batchmean"))
        near(found, F.kl_div(t(logs), t(TARGET + 0.1), reduction="batchmean"))


@pytest.mark.parametrize("states", [False, True])
def test_a_long_short_term_memory_of_one_matrix(states: bool, tmp_path: Path) -> None:
    """DynamicRNN: gates i, g, f, o; what is added to f."""
    time, batch, inputs, hidden, forget = 3, 2, 4, 5, 0.75
    x, w, bias = drawn(time, batch, inputs), drawn(inputs + hidden, 4 * hidden), drawn(4 * hidden)
    h, c = (drawn(1, batch, hidden) * states for _ in range(2))
    given = (None, h, c) if states else ()
    found = run(tmp_path, "DynamicRNN", x, w, bias, *given, forget_bias=forget)
    wanted, cells = [], []
    before, cell = h[0], c[0]
    for step in x:
        i, g, f, o = np.split(np.concatenate((step, before), 1) @ w + bias, 4, 1)
        i, f, o = (1 / (1 + np.exp(-item)) for item in (i, f + forget, o))
        cell = f * cell + i * np.tanh(g)
        before = o * np.tanh(cell)
        wanted.append(before)
        cells.append(cell)
    near(found[0], np.stack(wanted))
    near(found[1].reshape(batch, hidden), cells[-1])


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("order", ["rzh", "zrh"])
@pytest.mark.parametrize("axes", [0, 2, 3])
def test_a_gated_unit(order: str, after: bool, axes: int, tmp_path: Path) -> None:
    """DynamicGRUV2, with a state of three axes, of two, and without."""
    time, batch, inputs, hidden = 3, 2, 4, 5
    x = drawn(time, batch, inputs)
    weights = drawn(inputs, 3 * hidden), drawn(hidden, 3 * hidden)
    biases = drawn(3 * hidden), drawn(3 * hidden)
    h = drawn(batch, hidden) * bool(axes)
    state = (None, h[None] if axes == 3 else h) if axes else ()
    found = run(tmp_path, "DynamicGRUV2", x, *weights, *biases, *state, gate_order=order, reset_after=after)
    place = {"rzh": (0, 1), "zrh": (1, 0)}[order]
    wanted = []
    for step in x:
        of_x = np.split(step @ weights[0] + biases[0], 3, 1)
        of_h = np.split(h @ weights[1] + biases[1], 3, 1)
        r, z = (1 / (1 + np.exp(-(of_x[at] + of_h[at]))) for at in place)
        if after:
            new = np.tanh(of_x[2] + r * of_h[2])
        else:
            new = np.tanh(of_x[2] + (r * h) @ weights[1][:, 2 * hidden :] + biases[1][2 * hidden :])
        h = (1 - z) * new + z * h
        wanted.append(h)
    near(found[0], np.stack(wanted))


NUMBERS = DRAWN.standard_normal((3, 5)) + 1j * DRAWN.standard_normal((3, 5))
OTHERS = DRAWN.standard_normal((5, 2)) + 1j * DRAWN.standard_normal((5, 2))


def complex_of(array: Array) -> Made:
    return Made(
        "Complex", *(np.ascontiguousarray(part.astype(np.float32)) for part in (array.real, array.imag))
    )


def of_complex(folder: Path, kind: str, *operands: Any) -> Array:
    found = only(run(folder, "ViewAsReal", Made(kind, *operands)))
    return found[..., 0] + 1j * found[..., 1]


@pytest.mark.parametrize("norm", ["backward", "forward", "ortho"])
@pytest.mark.parametrize("dims", [1, 2])
def test_the_older_form_of_fourier_transforms(norm: str, dims: int, tmp_path: Path) -> None:
    axes = (-2, -1)[2 - dims :]
    real = NUMBERS.real.astype(np.float32)
    kind = "FFTWithSize"
    for inverse, wanted in ((False, np.fft.fftn), (True, np.fft.ifftn)):
        found = of_complex(tmp_path, kind, complex_of(NUMBERS), dims, inverse, False, norm)
        near(found, wanted(NUMBERS, axes=axes, norm=norm))
    half = np.fft.rfftn(real, axes=axes, norm=norm)
    near(of_complex(tmp_path, kind, real, dims, False, True, norm, True), half)
    near(of_complex(tmp_path, kind, real, dims, False, True, norm), half)
    whole = np.fft.fftn(real, axes=axes, norm=norm)
    near(of_complex(tmp_path, kind, real, dims, False, True, norm, False), whole)
    near(only(run(tmp_path, kind, complex_of(whole), dims, True, True, norm, False)), real)
    sizes = real.shape[2 - dims :]
    near(only(run(tmp_path, kind, complex_of(half), dims, True, True, norm, True, sizes)), real)
    even = np.fft.irfftn(half, axes=axes, norm=norm)
    near(only(run(tmp_path, kind, complex_of(half), dims, True, True, norm, True, ())), even)


def test_complex_numbers(tmp_path: Path) -> None:
    near(of_complex(tmp_path, "MatMulExt", complex_of(NUMBERS), complex_of(OTHERS)), NUMBERS @ OTHERS)
    real = OTHERS.real.astype(np.float32)
    near(of_complex(tmp_path, "BatchMatMulExt", complex_of(NUMBERS), real), NUMBERS @ real)
    near(only(run(tmp_path, "ComplexAbs", complex_of(NUMBERS))), np.abs(NUMBERS))
    near(only(run(tmp_path, "Angle", complex_of(NUMBERS))), np.angle(NUMBERS))
    for kind, wanted in (("Add", NUMBERS + 2), ("Sub", NUMBERS - 2)):
        near(of_complex(tmp_path, kind, complex_of(NUMBERS), 2.0), wanted)
    row = NUMBERS.real[0].astype(np.float32)
    for kind, wanted in (("Add", NUMBERS + row), ("Sub", NUMBERS - row)):
        near(of_complex(tmp_path, kind, complex_of(NUMBERS), row), wanted)
    near(of_complex(tmp_path, "Sub", row, complex_of(NUMBERS)), row - NUMBERS)
    near(of_complex(tmp_path, "Complex", row, np.float32(2)), row + 2j)


def test_shapes_and_parts_of_complex_numbers(tmp_path: Path) -> None:
    assert only(run(tmp_path, "Size", complex_of(NUMBERS))) == 15
    assert only(run(tmp_path, "Rank", complex_of(NUMBERS))) == 2
    rows = [NUMBERS[:1], NUMBERS[1:]]
    joined = of_complex(tmp_path, "Concat", (complex_of(rows[1]), complex_of(rows[0])), 0)
    near(joined, np.concatenate(rows[::-1]))
    for place in range(3):
        part = of_complex(tmp_path, "TupleGetItem", Made("Split", complex_of(NUMBERS), 0, 3), place)
        near(part, NUMBERS[place : place + 1])


def test_complex_numbers_of_other_types(tmp_path: Path) -> None:
    for number, kind in ((51, np.float32), (52, np.float64)):
        for given in (NUMBERS, NUMBERS.real):
            operand = complex_of(given) if given.dtype.kind == "c" else given.astype(np.float32)
            found = only(run(tmp_path, "ViewAsReal", Made("Cast", operand, number)))
            assert found.dtype == kind
            near(found[..., 0] + 1j * found[..., 1], given + 0j)
    found = only(run(tmp_path, "ViewAsReal", Made("Cast", np.array([2**40 + 1]), 52)))
    assert found.tolist() == [[2**40 + 1, 0]]
    found = only(run(tmp_path, "Cast", complex_of(NUMBERS), 43))
    assert found.dtype == np.float32
    near(found, NUMBERS.real)


def test_a_product_with_reflections_from_the_right(tmp_path: Path) -> None:
    matrix, other = drawn(4, 3), drawn(2, 4)
    reflections, scales = torch.geqrf(t(matrix))
    for transpose in (False, True):
        found = run(
            tmp_path, "Ormqr", reflections.numpy().copy(), scales.numpy().copy(), other, False, transpose
        )
        near(only(found), torch.ormqr(reflections, scales, t(other), left=False, transpose=transpose))
