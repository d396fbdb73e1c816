"""Primitives of MindIR where numbers end: zeros of both signs, whole numbers, the largest, the smallest,
endless ones and no numbers. Torch answers."""

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


def run(
    folder: Path,
    kind: str,
    *inputs: Array,
    parts: bool = False,
    like: Array | None = None,
    **attributes: Any,
) -> Array:
    """What a primitive gives for arrays, shaped as the first one or ``like``; with ``parts`` each two of them
    are one operand of complex numbers, and so is the answer."""
    file = File()
    named = [(f"x{place}", item.dtype.name, item.shape) for place, item in enumerate(inputs)]
    graph = file.graph("main", *named)
    operands = [graph[name] for name, _, _ in named]
    like = inputs[0] if like is None else like
    shape, dtype = like.shape, like.dtype.name
    if parts:
        operands = [graph.prim("Complex", *pair) for pair in zip(operands[::2], operands[1::2], strict=True)]
    found = graph.prim(kind, *operands, types=() if parts else ((dtype, shape),), **attributes)
    graph.gives(graph.prim("ViewAsReal", found, types=((dtype, (*shape, 2)),)) if parts else found)
    session = graphs.session(import_model(file.save(folder / "edge.mindir")))
    names = [item.name for item in session.get_inputs()]
    (answer,) = session.run(None, dict(zip(names, inputs, strict=True)))
    assert isinstance(answer, np.ndarray)
    return answer.view(np.result_type(answer, np.complex64))[..., 0] if parts else answer


def assert_near(found: Array, wanted: Any) -> None:
    """To 5e-6 of each; the smallest numbers, of fewer digits, to the last of them."""
    np.testing.assert_allclose(found, wanted.numpy(), rtol=5e-6, atol=1e-15)


EDGES = np.array(
    [
        0, -0.0, 1, -1, 2, 0.5, -0.5, -2, -3, -10, 1e-45, -1e-45, 1e-38, -1e-38, 1e-30, -1e-30, -1e-20, 1e-12,
        -1e-12, 1e-3, -1e-3, -1.5, -2.4, 3.75, 8, -8, 20, 88, 100, -100, -100.5, 1e5, -1e5, 1e10, 1e30, -1e30,
        3e38, -3e38, np.inf, -np.inf, np.nan,
    ],
    np.float32,
)  # fmt: skip
SPECIAL = {
    "Lgamma": torch.lgamma,
    "Digamma": torch.digamma,
    "BesselI0": torch.special.i0,
    "BesselI0e": torch.special.i0e,
    "BesselI1": torch.special.i1,
    "BesselI1e": torch.special.i1e,
    "BesselK0": torch.special.modified_bessel_k0,
    "BesselK0e": torch.special.scaled_modified_bessel_k0,
    "BesselK1": torch.special.modified_bessel_k1,
    "BesselK1e": torch.special.scaled_modified_bessel_k1,
    "BesselJ0": torch.special.bessel_j0,
    "BesselJ1": torch.special.bessel_j1,
    "BesselY0": torch.special.bessel_y0,
    "BesselY1": torch.special.bessel_y1,
}


def test_a_smooth_loss_begins_its_line_at_1(tmp_path: Path) -> None:
    """Where the file does not say where."""
    x, target = np.float32([0, 0.05, 0.5, 1, 1.5, -3]), np.zeros(6, np.float32)
    found = run(tmp_path, "SmoothL1Loss", x, target)
    wanted = torch.nn.functional.smooth_l1_loss(*map(torch.from_numpy, (x, target)), reduction="none")
    assert_near(found, wanted)


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_functions(kind: str, tmp_path: Path) -> None:
    """Torch computes in float64: in float32 it loses the waves of large numbers."""
    wanted = SPECIAL[kind](torch.from_numpy(EDGES).double()).float()
    assert_near(run(tmp_path, kind, EDGES), wanted)


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_functions_are_as_near_as_their_page_says(kind: str, tmp_path: Path) -> None:
    """docs/mindir.md. Of J and Y it is no share of the answer, which has zeros; so have both of gamma."""
    x = np.linspace(1e-3, 60, 20001).astype(np.float32)
    wanted = SPECIAL[kind](torch.from_numpy(x).double()).numpy()
    last = np.spacing(np.abs(wanted).astype(np.float32)).astype(np.float64)
    share, least = (0, 1e-6) if "J" in kind or "Y" in kind else (5e-7, 0)
    limit = last + (1e-11 if "gamma" in kind else share * np.abs(wanted) + least)
    assert np.all(np.abs(run(tmp_path, kind, x) - wanted) <= limit)


ORDERS = [1e-3, 0.5, 1, 2.5, 19.5, 20, 25, 100, 500]
PAIRS: dict[str, tuple[Any, list[float], list[float]]] = {
    "Zeta": (torch.special.zeta, [1, 1.0001, 1.5, 2, 3, 4, 15, 16, 40, 300], [
        1e-30, 1e-3, 0.5, 1, 2, 2.5, 8, 9, 50, 1e3, 1e10, np.nan, -0.5, -1e-3, -2.3, -7.75, -30.25]),
    "Polygamma": (torch.polygamma, [2, 5, 8], [
        0, -1, -2, 1e-3, 0.5, 1, 2.5, 9, 50, 1e5, np.nan, -0.5, -1e-3, -2.3, -30.25]),
    "Igamma": (torch.special.gammainc, ORDERS, [
        0, 1e-30, 1e-3, 0.5, 1, 2, 3.5, 15, 20.5, 21, 29, 70, 99, 130, 480, 540, 1e3, np.inf, np.nan, -1]),
    "Igammac": (torch.special.gammaincc, ORDERS, [
        0, 1e-30, 1e-3, 0.5, 1, 2, 3.5, 15, 20.5, 21, 29, 70, 99, 130, 480, 540, 1e3, np.inf, np.nan, -1]),
}  # fmt: skip


@pytest.mark.parametrize("kind", PAIRS)
def test_special_functions_of_two_numbers(kind: str, tmp_path: Path) -> None:
    """In float64: poles, ends, and where one way to compute them becomes another. Torch is right to 3e-9."""
    known, firsts, seconds = PAIRS[kind]
    x = np.array(seconds)
    if kind == "Polygamma":
        for order in firsts:
            found = run(tmp_path, kind, np.array(order, np.int64), x, like=x)
            wanted = known(int(order), torch.tensor(x)).numpy()
            np.testing.assert_allclose(found, wanted, rtol=5e-9)
        return
    first, second = (np.ascontiguousarray(item) for item in np.meshgrid(firsts, x))
    found = run(tmp_path, kind, first, second)
    np.testing.assert_allclose(found, known(torch.tensor(first), torch.tensor(second)).numpy(), rtol=5e-9)


def test_what_is_left_of_the_gamma_function_of_small_orders(tmp_path: Path) -> None:
    """1 - P has no digits of it; torch has none below 1e-12."""
    mpmath = pytest.importorskip("mpmath", reason="mpmath, which answers, is missing")
    orders = [1e-16, 1e-12, 1e-8, 1e-6, 1e-3, 0.05, 0.0999, 0.1001]
    places = [1e-300, 1e-30, 1e-8, 1e-3, 0.3, 0.5, 0.9, 1, 1.05, 1.09, 1.2, 3]
    a, x = (np.ascontiguousarray(item) for item in np.meshgrid(orders, places))
    with mpmath.workdps(60):
        known = [mpmath.gammainc(*pair, regularized=True) for pair in zip(a.flat, x.flat, strict=True)]
    found = run(tmp_path, "Igammac", a, x)
    np.testing.assert_allclose(found.reshape(-1), np.array(known, np.float64), rtol=5e-14)


@pytest.mark.parametrize("order", [1e6, 1e12])
def test_incomplete_gamma_functions_of_large_orders(order: float, tmp_path: Path) -> None:
    """Torch ends its series early there: the normal distribution answers, with what the skewness adds, up to
    its next term (J. Edgeworth)."""
    place = np.array([-8, -5, -1, 0, 0.1, 2, 5, 8.0])
    x = order + place * np.sqrt(order)
    below, above = (run(tmp_path, kind, np.full_like(x, order), x) for kind in ("Igamma", "Igammac"))
    np.testing.assert_allclose(below + above, 1, rtol=1e-15)
    away = torch.tensor(place)
    density = torch.exp(-away * away / 2) / np.sqrt(2 * np.pi)
    normal = torch.special.erfc(away.abs() / np.sqrt(2)) / 2
    side = torch.where(away < 0, -1, 1)
    skewed = normal + side * density * (away * away - 1) / (3 * np.sqrt(order))
    found = np.where(place < 0, below, above)
    lost = np.maximum(np.abs(place), 2) ** 6 / (15 * order) + 1e-12
    assert np.all(np.abs(found / skewed.numpy() - 1) <= lost)


def test_whole_numbers_divided_by_0_end_no_run(tmp_path: Path) -> None:
    """ONNX Runtime ends it. What MindSpore 2.10 gave: rounded down, the largest number of the type with the
    dividend's sign; else what x86 makes an integer of that is none, or 0 of fewer than 32 bits."""
    x, other = np.array([5, -5, 0, 7, -7]), np.array([0, 0, 0, 2, 2])
    for name in ("int8", "uint8", "int32", "int64"):
        top, below = x.astype(name), other.astype(name)
        limits = np.iinfo(name)
        none = limits.min if limits.bits >= 32 else 0
        down = [limits.max, limits.min or limits.max, 0]
        for kind, wanted in {
            "FloorDiv": [*down, *(top // np.maximum(below, 1))[3:]],
            "DivMod": [none] * 3 + [*np.trunc(top[3:] / below[3:])],
            "FloorMod": [none] * 3 + [*(top % np.maximum(below, 1))[3:]],
            "Mod": [none] * 3 + [*np.fmod(top, np.maximum(below, 1))[3:]],
        }.items():
            options = {"rounding_mode": "trunc"} if kind == "DivMod" else {}
            found = run(tmp_path, kind, top, below, **options)
            np.testing.assert_array_equal(found, np.array(wanted).astype(name), f"{kind} {name}", strict=True)


@pytest.mark.parametrize("name", ["int8", "int32", "int64"])
def test_the_least_number_divided_by_minus_1_ends_no_process(name: str, tmp_path: Path) -> None:
    """The processor stops a process that does it. MindSpore 2.10 gave the least number again, and no rest."""
    least = np.iinfo(name).min
    x = np.array([least, least + 1, 5, least], name)
    divisors = np.array([-1, -1, -1, 7], name)
    opposite = np.array([least, -(least + 1), -5], name)
    for kind, options, wanted in (
        ("FloorDiv", {}, [*opposite, least // 7]),
        ("DivMod", {"rounding_mode": "trunc"}, [*opposite, -(-least // 7)]),
        ("FloorMod", {}, [0, 0, 0, least % 7]),
        ("Mod", {}, [0, 0, 0, -(-least % 7)]),
    ):
        found = run(tmp_path, kind, x, divisors, **options)
        np.testing.assert_array_equal(found, np.array(wanted, name), f"{kind} {name}", strict=True)


@pytest.mark.parametrize(("kind", "wanted"), [("ScalarFloorDiv", -(2**63)), ("ScalarMod", 0)])
def test_numbers_of_a_run_divided_by_minus_1_end_no_process(kind: str, wanted: int, tmp_path: Path) -> None:
    file = File()
    graph = file.graph("main", ("x", "int64", ()), ("y", "int64", ()))
    numbers = [graph.prim("TensorToScalar", graph[name], types=(("int64", ()),)) for name in "xy"]
    found = graph.prim(kind, *numbers, types=(("int64", ()),))
    graph.gives(graph.prim("ScalarToTensor", found, types=(("int64", ()),)))
    session = graphs.session(import_model(file.save(tmp_path / "numbers.mindir")))
    names = [item.name for item in session.get_inputs()]
    given = (np.array(-(2**63)), np.array(-1))
    (answer,) = session.run(None, dict(zip(names, given, strict=True)))
    assert answer == wanted


def test_the_place_of_a_running_extreme_is_found_in_half_precision(tmp_path: Path) -> None:
    """ONNX Runtime's optimizer leaves out some roundings to float16 and no others: -1 was a place."""
    file = File()
    graph = file.graph("main", ("x", "float32", (3, 6)))
    half = graph.prim("Cast", graph["x"], graph.const(42), types=(("float16", (3, 6)),))
    both = graph.prim("Cummax", half, types=(("float16", (3, 6)), ("int64", (3, 6))), axis=1)
    graph.gives(graph.prim("TupleGetItem", both, graph.const(1), types=(("int64", (3, 6)),)))
    session = graphs.session(import_model(file.save(tmp_path / "running.mindir")))
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    found = session.run(None, {session.get_inputs()[0].name: x})[0]
    wanted = torch.cummax(torch.tensor(x).half(), 1).indices.numpy()
    np.testing.assert_array_equal(found, wanted, strict=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_next_number(dtype: Any, tmp_path: Path) -> None:
    """Exactly, the sign of a zero too; of float32 MindSpore's own kernel for the CPU gives x itself."""
    kind = np.finfo(dtype)
    random = np.random.default_rng(0)
    exponents = np.arange(kind.minexp - kind.nmant, kind.maxexp)
    powers = np.ldexp(np.ones(len(exponents), dtype), exponents)
    some = powers * random.uniform(1, 2, len(powers)).astype(dtype)
    near = np.concatenate([np.nextafter(powers, dtype(0)), powers, np.nextafter(powers, dtype(np.inf)), some])
    ends = np.array([0, -0.0, kind.max, -kind.max, np.inf, -np.inf, np.nan, 1], dtype)
    x, other = (
        item.ravel() for item in np.meshgrid(np.concatenate([near, -near, ends]), ends[[0, 4, 5, 6, 7]])
    )
    found, wanted = run(tmp_path, "NextAfter", x, other), torch.nextafter(*map(torch.tensor, (x, other)))
    np.testing.assert_array_equal(found, wanted.numpy(), strict=True)
    known = ~np.isnan(found) & (found != other)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(wanted.numpy()[known]))


PARTS = [0, -0.0, 1, -1, 0.5, -2, 1e-30, -1e-30, 1e30, -1e30, 3e38, -3e38, np.inf, -np.inf, np.nan]
REAL, IMAGINARY = (
    np.ascontiguousarray(side.ravel()) for side in np.meshgrid(*[np.array(PARTS, np.float32)] * 2)
)
COMPLEX = {
    "Log": torch.log,
    "Sqrt": torch.sqrt,
    "Exp": torch.exp,
    "Reciprocal": torch.reciprocal,
    "Square": torch.square,
}


@pytest.mark.parametrize("kind", COMPLEX)
def test_functions_of_complex_numbers(kind: str, tmp_path: Path) -> None:
    """Both parts apart: numpy takes complex numbers of which one part is none as equal."""
    wanted = COMPLEX[kind](torch.complex(torch.from_numpy(REAL), torch.from_numpy(IMAGINARY)))
    found = run(tmp_path, kind, REAL, IMAGINARY, parts=True)
    assert_near(found.real, wanted.real)
    assert_near(found.imag, wanted.imag)


def test_a_number_of_twice_64_bits_has_a_reciprocal(tmp_path: Path) -> None:
    real, imaginary = np.array([3.0, 1e200, 0]), np.array([4.0, -1e200, 1e-200])
    wanted = torch.complex(torch.from_numpy(real), torch.from_numpy(imaginary)).reciprocal()
    assert_near(run(tmp_path, "Reciprocal", real, imaginary, parts=True) / wanted.numpy(), torch.ones(3))


def test_a_root_keeps_the_side_of_a_zero(tmp_path: Path) -> None:
    found = run(tmp_path, "Sqrt", REAL, IMAGINARY, parts=True)
    numbers = ~np.isnan(REAL) & ~np.isnan(IMAGINARY)
    np.testing.assert_array_equal(np.signbit(found.imag)[numbers], np.signbit(IMAGINARY)[numbers])


def test_quotients_of_complex_numbers(tmp_path: Path) -> None:
    """Of finite ones; torch divides them in float64, where nothing overflows on the way."""
    finite = np.isfinite(REAL) & np.isfinite(IMAGINARY) & ((REAL != 0) | (IMAGINARY != 0))
    below = REAL[finite], IMAGINARY[finite]
    above = below[1] / 3 + below[0] / 7, below[0] / 3
    one, other = (
        torch.complex(*(torch.from_numpy(part).double() for part in pair)) for pair in (above, below)
    )
    found = run(tmp_path, "Div", *above, *below, parts=True)
    wanted = one / other
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5)


@pytest.mark.parametrize(("kind", "known"), [("Abs", torch.abs), ("Angle", torch.angle)])
def test_sizes_and_angles_of_complex_numbers(kind: str, known: Any, tmp_path: Path) -> None:
    file = File()
    graph = file.graph("main", *((name, "float32", REAL.shape) for name in ("x", "y")))
    both = graph.prim("Complex", graph["x"], graph["y"])
    graph.gives(graph.prim(kind, both, types=(("float32", REAL.shape),)))
    session = graphs.session(import_model(file.save(tmp_path / "of_complex.mindir")))
    feeds = dict(zip([item.name for item in session.get_inputs()], (REAL, IMAGINARY), strict=True))
    wanted = known(torch.complex(torch.from_numpy(REAL), torch.from_numpy(IMAGINARY)))
    assert_near(session.run(None, feeds)[0], wanted)


def test_angles_of_points(tmp_path: Path) -> None:
    wanted = torch.atan2(torch.from_numpy(IMAGINARY), torch.from_numpy(REAL))
    found = run(tmp_path, "Atan2", IMAGINARY, REAL)
    assert_near(found, wanted)
    known = ~np.isnan(found)
    np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(wanted.numpy())[known])


@pytest.mark.parametrize("p", [1, 2])
def test_a_margin_to_endless_numbers(p: int, tmp_path: Path) -> None:
    """MindSpore 2.10 gives 0, 0, inf, 0 and 0 for these too."""
    inf, nan = np.inf, np.nan
    rows = np.array([[1, 2, inf], [1, nan, 3], [1, inf, 2], [nan, 1, 2], [-inf, 1, 2.5]], np.float32)
    classes = np.array([2, 2, 2, 0, 2], np.int32)
    file = File()
    graph = file.graph("main", ("x", "float32", rows.shape), ("t", "int32", classes.shape))
    weight = graph.const(np.ones(3, np.float32))
    graph.gives(
        graph.prim(
            "MultiMarginLoss", graph["x"], graph["t"], weight, types=(("float32", (5,)),),
            p=p, margin=1.0, reduction="none",
        )
    )  # fmt: skip
    session = graphs.session(import_model(file.save(tmp_path / "margin.mindir")))
    feeds = dict(zip([item.name for item in session.get_inputs()], (rows, classes), strict=True))
    wanted = torch.nn.functional.multi_margin_loss(
        torch.from_numpy(rows), torch.from_numpy(classes).long(), p=p, reduction="none"
    )
    assert_near(session.run(None, feeds)[0], wanted)


def test_the_loss_of_an_ignored_row_is_0_whatever_its_numbers(tmp_path: Path) -> None:
    logs, classes = np.array([[-np.inf, -1], [-2, -3]], np.float32), np.array([-100, 1], np.int32)
    file = File()
    graph = file.graph("main", ("x", "float32", logs.shape), ("t", "int32", classes.shape))
    weight = graph.const(np.ones(2, np.float32))
    both = graph.prim(
        "NLLLoss", graph["x"], graph["t"], weight, types=(("float32", ()),) * 2,
        reduction="mean", ignore_index=-100,
    )  # fmt: skip
    graph.gives(graph.prim("TupleGetItem", both, graph.const(0), types=(("float32", ()),)))
    session = graphs.session(import_model(file.save(tmp_path / "ignored.mindir")))
    feeds = dict(zip([item.name for item in session.get_inputs()], (logs, classes), strict=True))
    wanted = torch.nn.functional.nll_loss(torch.from_numpy(logs), torch.from_numpy(classes).long())
    assert_near(session.run(None, feeds)[0], wanted)


@pytest.mark.parametrize("kind", ["Pdist", "Cdist"])
@pytest.mark.parametrize(("p", "why"), [(-1.0, "p -1.0 is negative"), (float("nan"), "p is no number")])
def test_distances_of_no_norm_are_refused(kind: str, p: float, why: str, tmp_path: Path) -> None:
    """As MindSpore refuses them where the network is made."""
    rows = [np.eye(3, dtype=np.float32)] * (2 if kind == "Cdist" else 1)
    with pytest.raises(ModelError, match=why):
        run(tmp_path, kind, *rows, p=p)


DOUBLES: dict[str, Any] = {
    "Cos": torch.cos, "Tan": torch.tan, "Sinh": torch.sinh, "Cosh": torch.cosh, "Asin": torch.asin,
    "ACos": torch.acos, "Atan": torch.atan, "Asinh": torch.asinh, "Acosh": torch.acosh, "Atanh": torch.atanh,
    "Erf": torch.erf, "Erfc": torch.erfc, "Erfinv": torch.erfinv, "Expm1": torch.expm1, "Log1p": torch.log1p,
    "Sigmoid": torch.sigmoid, "SiLU": torch.nn.functional.silu, "GeluExt": torch.nn.functional.gelu,
    "GeLU": lambda x: torch.nn.functional.gelu(x, approximate="tanh"), "CeLU": torch.celu,
    "EluExt": torch.nn.functional.elu, "SeLU": torch.selu, "Mish": torch.nn.functional.mish,
    "Softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)), "Softsign": torch.nn.functional.softsign,
}  # fmt: skip


@pytest.mark.parametrize("kind", DOUBLES)
def test_float64_keeps_its_digits(kind: str, tmp_path: Path) -> None:
    """Of numbers between -8 and 8, tiny ones, large ones, and those where functions change or end."""
    random = np.random.default_rng(0)
    tiny = random.uniform(-1, 1, 200) * 10.0 ** random.uniform(-18, -3, 200)
    edges = [0, 1, -1, 0.5, -0.5, 2, 30, -30, 700, -700, np.inf, np.nan, np.pi / 2, 1e5]
    near = 1 - random.uniform(1, 10, 340) * 10.0 ** -np.tile(np.arange(1, 18), 20)
    some = [random.uniform(-size, size, 400) for size in (1, 8, 709)]
    x = np.concatenate([*some, tiny, near, -near, 1 - 10.0 ** -np.arange(1, 17), edges])
    found, wanted = run(tmp_path, kind, x), DOUBLES[kind](torch.tensor(x)).numpy()
    assert found.dtype == np.float64
    finite = np.abs(wanted) < (1e15 if kind == "Tan" else np.inf)  # a pole is only met nearly
    lost = 4e-15 if kind in {"GeluExt", "GeLU"} else 1e-16  # by torch, in differences from 1
    digits = 2e-13 if kind == "Tan" else 2e-15  # the sine near its zeros, of ONNX Runtime's kernel
    np.testing.assert_allclose(found[finite], wanted[finite], rtol=digits, atol=lost)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))


def test_angles_of_float64_keep_their_digits(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    some = [0, -0.0, 1, -1, 1e-300, -1e300, np.inf, -np.inf]
    y, x = (np.concatenate([random.uniform(-3, 3, 400), part.ravel()]) for part in np.meshgrid(some, some))
    found, wanted = run(tmp_path, "Atan2", y, x), torch.atan2(torch.tensor(y), torch.tensor(x)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-15, atol=1e-300)


@pytest.mark.parametrize(
    "kind", ["Sinh", "Asin", "Atan", "Asinh", "Atanh", "Erf", "Erfinv", "Expm1", "Log1p", "Tan"]
)
def test_zeros_of_float64_keep_their_sign(kind: str, tmp_path: Path) -> None:
    assert np.signbit(run(tmp_path, kind, np.array([-0.0, 0.0]))).tolist() == [True, False]


def test_batches_are_normalized_by_themselves_without_moments(tmp_path: Path) -> None:
    """Also where nothing is trained."""
    x = np.random.default_rng(1).normal(3, 2, (2, 3, 4, 4)).astype(np.float32)
    file = File()
    graph = file.graph("main", ("x", "float32", x.shape))
    rest = [graph.const(item) for item in (None, None, None, None, False, 0.1, 1e-5)]
    types = (("float32", x.shape), ("float32", (3,)), ("float32", (3,)))
    found = graph.prim("BatchNormExt", graph["x"], *rest, types=types)
    graph.gives(graph.prim("TupleGetItem", found, graph.const(0)))
    (answer,) = graphs.session(import_model(file.save(tmp_path / "bn.mindir"))).run(None, {"x": x})
    wanted = torch.nn.functional.batch_norm(torch.tensor(x), None, None, training=True)
    np.testing.assert_allclose(np.asarray(answer), wanted.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "mode"), [("ReflectionPad1D", "reflect"), ("ReplicationPad1D", "replicate")]
)
@pytest.mark.parametrize("amounts", [(-1, 2), (2, -1), (-2, -1)])
def test_paddings_that_take_away(kind: str, mode: str, amounts: tuple[int, int], tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    wanted = torch.nn.functional.pad(torch.tensor(x), amounts, mode)
    found = run(tmp_path, kind, x, like=wanted.numpy(), padding=amounts)
    np.testing.assert_array_equal(found, wanted.numpy())
