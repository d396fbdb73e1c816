"""Input arrays from files, made-up inputs, output files."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.common.element_types import numpy_dtype
from launcher.errors import ConfigError
from launcher.job.inputs import check_inputs, make_inputs, save_outputs
from launcher.job.values import parse_dims


@dataclass(frozen=True)
class Spec:
    name: str
    dtype: Any
    shape: tuple[int | str | None, ...]
    open_rank: bool = False


IDS = Spec("ids", "int64", ("batch", "seq"))
MASK = Spec("mask", "float32", ("batch", 1, "seq"))
X = Spec("x", "float32", ("batch", 3))


def test_without_files_inputs_are_ones_and_symbols_are_one() -> None:
    arrays, made = make_inputs([IDS, MASK, Spec("flag", "bool", ()), Spec("n", "float16", (None, 2))])
    assert made == ["ids", "mask", "flag", "n"]
    assert {name: (array.dtype.name, array.shape) for name, array in arrays.items()} == {
        "ids": ("int64", (1, 1)),
        "mask": ("float32", (1, 1, 1)),
        "flag": ("bool", ()),
        "n": ("float16", (1, 2)),
    }
    assert all(array.all() for array in arrays.values())


def test_dims_and_seed() -> None:
    arrays, _ = make_inputs([IDS, MASK], dims={"batch": 2, "seq": 5}, seed=3)
    again, _ = make_inputs([IDS, MASK], dims={"batch": 2, "seq": 5}, seed=3)
    other, _ = make_inputs([IDS, MASK], dims={"batch": 2, "seq": 5}, seed=4)
    assert arrays["ids"].shape == (2, 5) and arrays["mask"].shape == (2, 1, 5)
    assert set(np.unique(arrays["ids"])) <= {0, 1}
    np.testing.assert_array_equal(arrays["mask"], again["mask"])
    assert not np.array_equal(arrays["mask"], other["mask"])


def test_zero_is_a_seed_like_any_other() -> None:
    made = [make_inputs([MASK], dims={"batch": 8, "seq": 64}, seed=seed)[0] for seed in (0, 0, None)]
    np.testing.assert_array_equal(made[0][MASK.name], made[1][MASK.name])
    assert not (made[0][MASK.name] == 1).all() and (made[2][MASK.name] == 1).all()


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_inputs_of_any_number_of_axes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    spec = Spec("x", "float32", (), open_rank=True)
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    np.save(tmp_path / "x.npy", array)
    found, made = make_inputs([spec, IDS], [f"x={tmp_path / 'x.npy'}"])
    assert np.array_equal(found["x"], array) and made == ["ids"]
    array.tofile(tmp_path / "x.bin")
    with pytest.raises(ConfigError, match=r"input 'x' may have any number of axes, which raw data does not"):
        make_inputs([spec], [f"x={tmp_path / 'x.bin'}"])
    with pytest.raises(ConfigError, match=r"input 'x' may have any number of axes, so it cannot be made up"):
        make_inputs([spec])


def test_given_arrays_say_what_symbols_are(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(8, dtype=np.int64).reshape(2, 4))
    arrays, made = make_inputs([MASK, IDS], [f"ids={tmp_path}/ids.npy"])
    assert made == ["mask"] and list(arrays) == ["mask", "ids"]
    assert arrays["mask"].shape == (2, 1, 4)


def test_npz_npy_and_raw_files(tmp_path: Path) -> None:
    ids, mask = (
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 1, 3),
    )
    np.savez(tmp_path / "both.npz", ids=ids, mask=mask)
    np.savez_compressed(tmp_path / "packed.npz", ids=ids, mask=mask)
    np.save(tmp_path / "big_endian.npy", ids.astype(">i8"))
    np.save(tmp_path / "fortran.npy", np.asfortranarray(mask))
    mask.astype("<f4").tofile(tmp_path / "mask.bin")
    for sources in (
        ["both.npz"],
        ["packed.npz"],
        ["ids=big_endian.npy", "mask=fortran.npy"],
        ["mask=mask.bin", "ids=big_endian.npy"],  # the symbols of mask come from ids, in whatever order
    ):
        arrays, made = make_inputs([IDS, MASK], _in(tmp_path, sources))
        assert made == []
        np.testing.assert_array_equal(arrays["ids"], ids)
        np.testing.assert_array_equal(arrays["mask"], mask)
        assert all(a.flags.c_contiguous and a.dtype.isnative for a in arrays.values())


def _in(folder: Path, sources: list[str]) -> list[str]:
    return [f"{n}={folder}/{f}" if n else f"{folder}/{f}" for s in sources for n, _, f in [s.rpartition("=")]]


def test_one_input_needs_no_name_and_paths_may_hold_equals_signs(tmp_path: Path) -> None:
    path = tmp_path / "a=b.bin"
    np.arange(6, dtype=np.float32).tofile(path)
    assert make_inputs([X], [str(path)])[0]["x"].shape == (2, 3)
    assert make_inputs([X], [f"x={path}"])[0]["x"].shape == (2, 3)


def test_types_that_numpy_does_not_name(tmp_path: Path) -> None:
    assert numpy_dtype("bfloat16") == ml_dtypes.bfloat16
    assert numpy_dtype("float8e4m3fn") == ml_dtypes.float8_e4m3fn
    spec = Spec("x", "bfloat16", ("n",))
    np.save(tmp_path / "x.npy", np.array([1, 2.5], np.float32))
    array = make_inputs([spec], [f"{tmp_path}/x.npy"])[0]["x"]
    assert array.dtype == ml_dtypes.bfloat16 and array.tolist() == [1, 2.5]
    array.tofile(tmp_path / "x.bin")
    np.testing.assert_array_equal(make_inputs([spec], [f"{tmp_path}/x.bin"])[0]["x"], array)
    save_outputs(
        tmp_path / "out.npz",
        {"y/0": array, "file": np.float64(3), "ids": np.arange(3), "t": np.array(["ab"], object)},
    )
    with np.load(tmp_path / "out.npz", allow_pickle=False) as out:
        assert out["y/0"].dtype == np.float32 and out["y/0"].tolist() == [1, 2.5]
        assert out["file"] == 3 and out["ids"].tolist() == [0, 1, 2] and out["t"].tolist() == ["ab"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.npz", "x.bin", "x.npy"]


def test_text_inputs(tmp_path: Path) -> None:
    spec = Spec("s", "string", ("n",))
    np.save(tmp_path / "s.npy", np.array(["a", "bc"]))
    array = make_inputs([spec], [f"{tmp_path}/s.npy"])[0]["s"]
    assert array.dtype == object and array.tolist() == ["a", "bc"]
    with pytest.raises(ConfigError, match="cannot be made up"):
        make_inputs([spec])


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones((2, 3), np.float32))
    np.save("f64.npy", np.ones((2, 3)))
    np.save("wide.npy", np.ones((2, 4), np.float32))
    np.save("pickled.npy", np.array([{}, 1], object), allow_pickle=True)
    np.savez("other.npz", y=np.ones(3))
    np.savez("x.npz", x=np.ones((2, 3), np.float32))
    Path("ten.bin").write_bytes(b"\0" * 10)
    Path("empty.bin").write_bytes(b"")
    Path("bad.npz").write_bytes(b"PK\3\4garbage")
    Path("text.npy").write_text("hello")
    Path("cut.npy").write_bytes(Path("x.npy").read_bytes()[:-4])
    data = bytearray(Path("x.npz").read_bytes())
    data[90:100] = b"\xff" * 10
    Path("flipped.npz").write_bytes(data)
    with zipfile.ZipFile("huge.npz", "w") as archive:
        header = (
            str({"descr": "<f4", "fortran_order": False, "shape": (2**40, 3)}).encode().ljust(118 - 1) + b"\n"
        )
        archive.writestr("x.npy", b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header)
    os.mkfifo("pipe")
    return tmp_path


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["absent.npz"], "absent.npz: cannot read this .npz file: No such file"),
        (["x=absent.npy"], "absent.npy: input 'x': cannot read the array: No such file"),
        (["x=absent.bin"], "absent.bin: input 'x': cannot read: No such file"),
        (["f64.npy"], "f64.npy: input 'x': expected float32, found float64"),
        (["wide.npy"], "wide.npy: input 'x': expected shape [batch, 3], found [2, 4]"),
        (["pickled.npy"], "pickled.npy: input 'x': expected float32, found object"),
        (["other.npz"], "--input other.npz: the model has no input 'y' (it has: x)"),
        (["y=x.npy"], "--input y=x.npy: the model has no input 'y' (it has: x)"),
        (["x=x.npz"], "--input x=x.npz: an .npz file names its arrays; give it as --input x.npz"),
        (["x.npy", "x.npz"], "--input x.npz: the input 'x' is already given by x.npy"),
        (
            ["x=ten.bin"],
            "ten.bin: input 'x': expected a multiple of 12 bytes (float32 [batch, 3]), found 10 bytes",
        ),
        (["x=empty.bin"], "found 0 bytes"),
        (["bad.npz"], "bad.npz: cannot read this .npz file"),
        (["text.npy"], "text.npy: input 'x': cannot read the array"),
        (["cut.npy"], "cut.npy: input 'x': cannot read the array"),
        (["flipped.npz"], "flipped.npz"),
        (["huge.npz"], "huge.npz: input 'x': "),
        (["x=pipe"], "pipe: input 'x': pipe is a folder, a pipe or a device; expected a regular file"),
    ],
)
def test_bad_files(files: Path, sources: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_inputs([X], sources)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_raw_data_with_open_dimensions(files: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"dimensions batch, seq of shape \[batch, seq\] open; give them with --dim"
    ):
        make_inputs([IDS], ["ids=ten.bin"])
    with pytest.raises(ConfigError, match=r"expected 24 bytes \(int64 \[batch=1, seq=3\]\), found 10 bytes"):
        make_inputs([IDS], ["ids=ten.bin"], dims={"batch": 1, "seq": 3})
    with pytest.raises(ConfigError, match="expected NAME=FILE, for the model has the inputs ids, mask"):
        make_inputs([IDS, MASK], ["x.npy"])


def test_dims_are_checked() -> None:
    assert parse_dims(["batch=2", "a=b=3"]) == {"batch": 2, "a=b": 3}
    for text in ("batch", "=1", "batch=", "batch=-1", "batch=1.5", "batch=99999999999", "batch=x"):
        with pytest.raises(ConfigError, match="expected NAME=SIZE"):
            parse_dims([text])
    with pytest.raises(ConfigError, match="given twice"):
        parse_dims(["a=1", "a=2"])
    with pytest.raises(ConfigError, match=r"no such symbolic dimension \(it has: batch, seq\)"):
        make_inputs([IDS], dims={"bath": 1})
    with pytest.raises(ConfigError, match="does not fit into memory"):
        make_inputs([IDS], dims={"batch": 2**31 - 1, "seq": 2**31 - 1})
    with pytest.raises(ConfigError, match="does not fit into memory"):  # before anything is sliced
        check_inputs([IDS], dims={"batch": 2**31 - 1, "seq": 2**31 - 1})


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write the outputs: No such file or directory"):
        save_outputs(tmp_path / "absent" / "out.npz", {"y": np.ones(3)})
    save_outputs("/dev/null", {"y": np.ones(3)})


@settings(max_examples=150, deadline=None)
@given(
    content=st.binary(max_size=300),
    name=st.sampled_from(["x.npy", "x.npz", "x.bin"]),
    head=st.sampled_from([b"", b"\x93NUMPY\1\0", b"PK\3\4"]),
)
def test_garbage_is_refused_with_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str, head: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(head + content)
    spec = Spec("x", "float32", (1 << 20, "n"))  # more than the raw data can be
    with pytest.raises(ConfigError):
        make_inputs([spec], [f"x={path}" if name != "x.npz" else str(path)])


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.bin"])
def test_pipes_are_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=r"x\.\w+ is a folder, a pipe or a device; expected a regular file"):
        make_inputs([X], [str(tmp_path / name)])


def test_an_archive_that_blows_up(tmp_path: Path) -> None:
    """Zeros shrink a thousandfold, and become an array of many GB with all that the model makes of it."""
    spec = Spec("x", "float32", ("batch", 8))
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((4 << 20, 8), np.float32))
    assert (tmp_path / "bomb.npz").stat().st_size < 200_000
    with pytest.raises(ConfigError, match="would become 134 MB, more than 100 times as much") as error:
        make_inputs([spec], [str(tmp_path / "bomb.npz")])
    assert str(error.value).startswith(f"{tmp_path / 'bomb.npz'}: input 'x': ")
    np.savez(tmp_path / "stored.npz", x=np.zeros((4 << 20, 8), np.float32))
    assert make_inputs([spec], [str(tmp_path / "stored.npz")])[0]["x"].shape == (4 << 20, 8)
    np.savez_compressed(tmp_path / "mask.npz", x=np.zeros((1 << 20, 8), np.float32))
    assert make_inputs([spec], [str(tmp_path / "mask.npz")])[0]["x"].shape == (1 << 20, 8)


@pytest.mark.parametrize("rows", [3, 1 << 40])
@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_a_header_that_says_more_than_there_is(tmp_path: Path, name: str, rows: int) -> None:
    text = repr({"descr": "<f4", "fortran_order": False, "shape": (rows, 8)}).encode()
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(2 * 8 * 4)
    if name == "x.npy":
        (tmp_path / name).write_bytes(data)
    else:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("x.npy", data)
    said = rf"its header says \d+ bytes, but there are {len(data)}: the file is damaged"
    with pytest.raises(ConfigError, match=said):
        make_inputs([Spec("x", "float32", ("batch", 8))], [str(tmp_path / name)])


def test_a_header_that_is_no_constant(tmp_path: Path) -> None:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (10**9, 8)}"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    with pytest.raises(ConfigError, match=r"cannot read the array: its header is damaged$"):
        make_inputs([Spec("x", "float32", ("batch", 8))], [str(tmp_path / "x.npy")])


def test_one_symbol_may_stand_for_two_lengths(tmp_path: Path) -> None:
    """In what is given, unless ``dims`` says the length; what is made up takes the first."""
    given = {"ids": np.ones((2, 5), np.int64), "x": np.ones((3, 3), np.float32)}
    np.savez(tmp_path / "in.npz", **given)
    arrays, made = make_inputs([IDS, X, MASK], [str(tmp_path / "in.npz")])
    assert {name: array.shape for name, array in arrays.items()} == {
        "ids": (2, 5),
        "x": (3, 3),
        "mask": (2, 1, 5),
    }
    assert made == ["mask"]
    check_inputs([IDS, X, MASK], [str(tmp_path / "in.npz")])
    for take in (make_inputs, check_inputs):
        with pytest.raises(ConfigError, match="expected shape"):
            take([IDS, X, MASK], [str(tmp_path / "in.npz")], dims={"batch": 2})


@pytest.mark.parametrize("given", [np.array(["ab", "ü"]), np.array([b"ab", "ü".encode()])])
def test_text_comes_as_characters_or_bytes(tmp_path: Path, given: np.ndarray[Any, Any]) -> None:
    np.save(tmp_path / "in.npy", given)
    arrays, _ = make_inputs([Spec("s", "string", ("n",))], [str(tmp_path / "in.npy")])
    assert arrays["s"].tolist() == ["ab", "ü"]
