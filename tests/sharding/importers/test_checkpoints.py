"""Files of weights: every kind gives the weights that were saved; damaged and hostile ones are refused."""

import json
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sharding.errors import ModelError
from sharding.importers.checkpoints import kind_of, open_checkpoint, torch_file
from sharding.onnx_files.protobuf import field, varint

DATA = Path(__file__).parents[2] / "data" / "checkpoints" / "lenet5"


def arrays(path: Path) -> dict[str, Any]:
    return {name: entry.array() for name, entry in open_checkpoint(path).entries.items()}


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def value(name: str, kind: str, dims: list[int], content: bytes, *, packed: bool = False) -> bytes:
    numbers = [varint(dim & (1 << 64) - 1) for dim in dims]
    shape = field(1, b"".join(numbers)) if packed else b"".join(b"\x08" + number for number in numbers)
    tensor = shape + field(2, kind.encode()) + field(3, content)
    return field(1, field(1, name.encode()) + field(2, tensor))


def safetensors_bytes(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_mindspore_saved_the_same_in_both_formats() -> None:
    ckpt, tensors = arrays(DATA / "model.ckpt"), arrays(DATA / "model.safetensors")
    assert open_checkpoint(DATA / "model.ckpt").format == "MindSpore checkpoint"
    assert list(ckpt)[:3] == ["conv1.weight", "conv2.weight", "fc1.weight"]
    assert ckpt["fc1.weight"].shape == (120, 400)
    assert set(ckpt) == set(tensors)
    for name, array in ckpt.items():
        np.testing.assert_array_equal(array, tensors[name])


def test_ckpt_joins_parts_and_reads_scalars(tmp_path: Path) -> None:
    whole = np.arange(24, dtype="<f4").reshape(6, 4)
    halves = [whole[:3].tobytes(), whole[3:].tobytes()]
    content = b"".join(value("w", "Float32", [6, 4], half) for half in halves)
    content += value("step", "Int32", [0], struct.pack("<i", 7)) + value("empty", "Int32", [0], b"")
    content += value("half", "BFloat16", [2], b"\x80\x3f\x00\x40", packed=True)
    content += value("note", "str", [0], b"text that append_dict adds")
    path = tmp_path / "w.ckpt"
    path.write_bytes(content + b"crc_num" + zlib.crc32(content).to_bytes(10, "big"))
    found = arrays(path)
    np.testing.assert_array_equal(found["w"], whole)
    assert (found["step"].shape, int(found["step"])) == ((), 7)
    assert found["empty"].shape == (0,)
    assert found["half"].astype(np.float32).tolist() == [1, 2]
    assert "note" not in found
    path.write_bytes(content + b"crc_num" + bytes(10))
    assert "does not have the CRC-32" in refused(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (
            value("w", "Float32", [3], bytes(8)),
            "needs 12 bytes for its type float32 and shape [3], but has 8",
        ),
        (value("w", "Float32", [-1], bytes(8)), "impossible shape"),
        (value("w", "Quint4", [2], bytes(8)), "has the type 'Quint4'"),
        (value("w", "Float32", [1] * 80, bytes(4)), "impossible shape"),
        (value("w", "Float32", [2**62, 2**62], bytes(8)), "impossible shape"),
        (value("w", "Float32", [0, 2**62], b""), "impossible shape"),
        (value("w", "Float32", [2], bytes(4)) + value("w", "Float16", [2], bytes(4)), "several times"),
        (value("w", "Float32", [4], bytes(8)) + value("w", "Float32", [2], bytes(8)), "several times"),
        (field(1, field(1, b"h") + field(3, b"")), "map parameter 'h'"),
        (value("w\n", "Float32", [3], b""), "the parameter 'w\\\\n'"),
        (value("w", "Float32", [1], bytes(4)) + b"\x0a\xff\x01", "truncated"),
    ],
)
def test_damaged_ckpt(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "w.ckpt"
    path.write_bytes(content)
    assert message in refused(path)


def test_encrypted_ckpt(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed")
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from sharding.common.encryption import Key

    vector, secret = bytes(range(16)), b"0123456789ABCDEF"
    sealed = AESGCM(secret).encrypt(vector[:12], (DATA / "model.ckpt").read_bytes(), None)
    text, tag = sealed[:-16], sealed[-16:]
    block = struct.pack("<I", 16) + vector + struct.pack("<I", len(text)) + text
    path = tmp_path / "secret.ckpt"
    path.write_bytes(struct.pack("<I", 0x7F3A5ED8) + tag + struct.pack("<I", len(block)) + block)
    assert "is encrypted (AES-GCM)" in refused(path)
    found = open_checkpoint(path, Key(secret)).entries["fc3.bias"].array()
    np.testing.assert_array_equal(found, arrays(DATA / "model.ckpt")["fc3.bias"])
    with pytest.raises(ModelError, match="is not encrypted, but a key was given"):
        open_checkpoint(DATA / "model.safetensors", Key(secret))
    # Lengths have no sign: read with one, these would fit the file.
    path.write_bytes(struct.pack("<I", 0x7F3A5ED8) + tag + struct.pack("<2I", 0, (1 << 32) - 4))
    with pytest.raises(ModelError, match="damaged or truncated in the block at byte 0"):
        open_checkpoint(path, Key(secret))


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack("<Q", 1 << 39) + b"{}", "is truncated, or no .safetensors file"),
        (safetensors_bytes(b"{" * 100_000, b""), "its header is no JSON"),
        (safetensors_bytes(b'{"a": 1, "a": 2}', b""), "a name stands there twice"),
        (safetensors_bytes({}, b""), "holds no tensor"),
        (safetensors_bytes({"w": ENTRY}, bytes(4)), "lies at bytes 0..8 of 4"),
        (safetensors_bytes({"w": ENTRY}, bytes(12)), "4 bytes at its end belong to no tensor"),
        (safetensors_bytes({"w": ENTRY, "v": ENTRY}, bytes(8)), "overlap or leave a gap"),
        (safetensors_bytes({"w": {**ENTRY, "shape": [3]}}, bytes(8)), "needs 12 bytes"),
        (safetensors_bytes({"w": {**ENTRY, "shape": [True, 2]}}, bytes(8)), "no lists of whole numbers"),
        (safetensors_bytes({"w": {**ENTRY, "shape": [-2, -1]}}, bytes(8)), "no lists of whole numbers"),
        (safetensors_bytes({"w": {**ENTRY, "data_offsets": [8, 0]}}, bytes(8)), "lies at bytes 8..0"),
        (safetensors_bytes({"w": {**ENTRY, "dtype": "F4"}}, bytes(8)), "has the type 'F4'"),
        (safetensors_bytes({"w": 3}, bytes(8)), "is not described by"),
    ],
)
def test_damaged_safetensors(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    assert message in refused(path)


def test_a_header_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 200_000_000) + b"{")
        file.truncate(300_000_000)  # a hole: nothing is stored
    assert "has a header of 200 MB; at most 100 MB are read" in refused(path)


def test_safetensors_of_the_library(tmp_path: Path) -> None:
    numpy_file = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    wanted = {
        "a": np.arange(6, dtype=np.float16).reshape(2, 3),
        "b": np.array(True),
        "c": np.zeros((0, 4), np.int64),
    }
    numpy_file.save_file(wanted, tmp_path / "w.safetensors", metadata={"format": "np"})
    found = arrays(tmp_path / "w.safetensors")
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


# Of each type the elements 1 and 2, by the page of the format (https://huggingface.co/docs/safetensors).
ONE_AND_TWO = {
    "BOOL": ("bool", b"\1\1"),
    "U8": ("uint8", b"\1\2"),
    "I8": ("int8", b"\1\2"),
    "U16": ("uint16", b"\1\0\2\0"),
    "I16": ("int16", b"\1\0\2\0"),
    "U32": ("uint32", struct.pack("<2I", 1, 2)),
    "I32": ("int32", struct.pack("<2i", 1, 2)),
    "U64": ("uint64", struct.pack("<2Q", 1, 2)),
    "I64": ("int64", struct.pack("<2q", 1, 2)),
    "F16": ("float16", struct.pack("<2e", 1, 2)),
    "F32": ("float32", struct.pack("<2f", 1, 2)),
    "F64": ("float64", struct.pack("<2d", 1, 2)),
    "C64": ("complex64", struct.pack("<4f", 1, 0, 2, 0)),
    "BF16": ("bfloat16", b"\x80\x3f\x00\x40"),
    "F8_E4M3": ("float8_e4m3fn", b"\x38\x40"),
    "F8_E5M2": ("float8_e5m2", b"\x3c\x40"),
}


def test_every_type_of_safetensors(tmp_path: Path) -> None:
    at, header = 0, {}
    for kind, (_, content) in ONE_AND_TWO.items():
        header[kind] = {"dtype": kind, "shape": [2], "data_offsets": [at, at := at + len(content)]}
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors_bytes(header, b"".join(content for _, content in ONE_AND_TWO.values())))
    found = arrays(path)
    assert {kind: array.dtype.name for kind, array in found.items()} == {
        kind: name for kind, (name, _) in ONE_AND_TWO.items()
    }
    for kind, array in found.items():
        assert array.astype(np.complex64).tolist() == [1, 1 if kind == "BOOL" else 2], kind


def test_every_type_of_ckpt(tmp_path: Path) -> None:
    """MindSpore writes the names of unsigned types in both ways."""
    kinds = {"Bool": "BOOL", "BFloat16": "BF16", "Complex64": "C64"}
    for bits in (8, 16, 32, 64):
        kinds |= {f"Int{bits}": f"I{bits}", f"UInt{bits}": f"U{bits}", f"Uint{bits}": f"U{bits}"}
    kinds |= {f"Float{bits}": f"F{bits}" for bits in (16, 32, 64)}
    path = tmp_path / "w.ckpt"
    path.write_bytes(
        b"".join(value(kind, kind, [2], ONE_AND_TWO[same][1]) for kind, same in kinds.items())
        + value("Complex128", "Complex128", [2], struct.pack("<4d", 1, 0, 2, 0))
    )
    found = arrays(path)
    assert found.pop("Complex128").dtype == np.complex128
    assert {kind: array.dtype.name for kind, array in found.items()} == {
        kind: ONE_AND_TWO[same][0] for kind, same in kinds.items()
    }
    for kind, array in found.items():
        assert array.astype(np.complex64).tolist() == [1, 1 if kind == "Bool" else 2], kind


def test_torch_gets_the_elements_of_each_of_its_types() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from sharding.importers.networks.weights import as_tensor

    special = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
    for dtype in (*map(np.dtype, special), np.dtype(np.float16), np.dtype(np.int64)):
        for array in (np.array([[1, 2, 3]]).astype(dtype)[:, ::2], np.array(2).astype(dtype)):
            tensor = as_tensor(array)
            assert str(tensor.dtype) == f"torch.{dtype.name}"
            assert tensor.float().tolist() == array.astype(np.float32).tolist()


def index(folder: Path, weight_map: Any) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": weight_map}))
    return path


def test_several_files_with_an_index(tmp_path: Path) -> None:
    for number in range(2):
        array = np.full(2, number, np.float32)
        content = safetensors_bytes({f"w{number}": ENTRY}, array.tobytes())
        (tmp_path / f"part-{number}.safetensors").write_bytes(content)
    path = index(tmp_path, {"w0": "part-0.safetensors", "w1": "part-1.safetensors"})
    found = open_checkpoint(path)
    assert found.format == "safetensors in 2 files"
    assert [file.name for file in found.files] == [path.name, "part-0.safetensors", "part-1.safetensors"]
    assert [float(entry.array()[0]) for entry in found.entries.values()] == [0, 1]
    assert list(open_checkpoint(tmp_path).entries) == ["w0", "w1"], "the folder has an index"
    assert "says that 'w2' is in part-1" in refused(index(tmp_path, {"w2": "part-1.safetensors"}))
    assert "part-2.safetensors does not exist" in refused(index(tmp_path, {"w2": "part-2.safetensors"}))


@pytest.mark.parametrize("name", ["../w.safetensors", "/etc/passwd", "a/../../b", "", "..", "a\0b", "x\\y"])
def test_an_index_cannot_lead_elsewhere(tmp_path: Path, name: str) -> None:
    assert "expected the name of a file beside it" in refused(index(tmp_path, {"w": name}))


@pytest.mark.parametrize(
    "document", ["[]", "{", '{"weight_map": {"a": 1}}', '{"weight_map": {}}', "[" * 99999]
)
def test_damaged_index(tmp_path: Path, document: str) -> None:
    (tmp_path / "x.index.json").write_text(document)
    assert "is not an index of a checkpoint" in refused(tmp_path / "x.index.json")


def test_folders_and_other_files(tmp_path: Path) -> None:
    assert "has no weights; expected one of model.safetensors.index.json" in refused(tmp_path)
    (tmp_path / "x.bin").write_bytes(b"nothing")
    assert "is no checkpoint that can be read" in refused(tmp_path / "x.bin")
    assert "y.ckpt does not exist; expected a checkpoint" in refused(tmp_path / "y.ckpt")
    for version in ("model.mindir", "model_v1.mindir"):
        path = Path(__file__).parents[2] / "data" / "mindir" / "lenet5" / version
        assert not path.exists() or kind_of(path) == "unknown"


NUMBERS = np.arange(6, dtype="<f4")
SMALL = {
    # Small and whole, without a checksum: what is changed is read on, and not refused as a whole.
    "w.ckpt": value("w", "Float32", [2, 3], NUMBERS[:4].tobytes())
    + value("w", "Float32", [2, 3], NUMBERS[4:].tobytes())
    + value("half", "BFloat16", [2], bytes(4), packed=True) + value("step", "Int32", [], bytes(4)),
    "w.safetensors": safetensors_bytes(
        {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
         "half": {"dtype": "BF16", "shape": [2], "data_offsets": [24, 28]},
         "step": {"dtype": "I32", "shape": [], "data_offsets": [28, 32]}},
        NUMBERS.tobytes() + bytes(8),
    ),
}  # fmt: skip
CHANGES = st.lists(
    st.tuples(st.integers(0, 5000), st.binary(max_size=9), st.integers(0, 9)), min_size=1, max_size=6
)
"""(place, new bytes, bytes that they replace)"""


def read_or_refused(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    try:
        found = open_checkpoint(path)
    except ModelError as error:
        assert "\n" not in str(error)
    else:
        for entry in found.entries.values():
            assert entry.array().shape == entry.shape
            assert sum(map(len, entry.chunks())) == entry.nbytes


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=CHANGES, cut=st.integers(0, 99))
def test_mutated_files_are_read_or_refused(tmp_path: Path, name: str, changes: Any, cut: int) -> None:
    data = bytearray(SMALL[name])
    for place, new, removed in changes:
        at = place % max(len(data), 1)
        data[at : at + removed] = new
    read_or_refused(tmp_path / name, bytes(data[: len(data) - cut] if cut % 3 == 0 else data))


LENGTHS = st.one_of(st.integers(0, 4), st.integers(-(1 << 63), (1 << 63) - 1))
SHAPES = st.lists(LENGTHS, max_size=3)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(
        st.tuples(
            st.sampled_from(["w", "v"]), st.sampled_from(["Float32", "Int8", "BFloat16", "x"]), SHAPES,
            st.binary(max_size=20), st.booleans(),
        ),
        max_size=3,
    )
)  # fmt: skip
def test_well_formed_ckpt_that_says_anything(tmp_path: Path, values: Any) -> None:
    parts = [value(name, kind, dims, data, packed=packed) for name, kind, dims, data, packed in values]
    read_or_refused(tmp_path / "w.ckpt", b"".join(parts))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tensors=st.lists(
        st.tuples(st.sampled_from(["F32", "I8", "BF16", "BOOL", "x"]), SHAPES, st.integers(0, 20), LENGTHS),
        max_size=3,
    ),
    honest=st.booleans(),
    more=st.binary(max_size=3),
)
def test_well_formed_safetensors_that_say_anything(
    tmp_path: Path, tensors: Any, honest: bool, more: bytes
) -> None:
    header, at = {}, 0
    for number, (kind, shape, length, odd) in enumerate(tensors):
        offsets = [at, at + length] if honest else [odd, length]
        header[f"t{number}"] = {"dtype": kind, "shape": shape, "data_offsets": offsets}
        at += length
    read_or_refused(tmp_path / "w.safetensors", safetensors_bytes(header, bytes(at)) + more * (not honest))


class TestTorch:
    """torch's own files."""

    @pytest.fixture(autouse=True)
    def torch(self) -> Any:
        return pytest.importorskip("torch", reason="torch is not installed")

    def test_state_dict(self, torch: Any, tmp_path: Path) -> None:
        wanted = {
            "a": torch.randn(3, 4),
            "b": torch.randn(4, 3).t(),
            "c": torch.tensor([1.5, -2]).bfloat16(),
            "d": torch.tensor(7),
            "e": torch.randn(2, 2, dtype=torch.complex64),
            "f": torch.zeros(0, 3, dtype=torch.bool),
        }
        for new in (True, False):
            path = tmp_path / "w.pt"
            torch.save({"epoch": 3, "state_dict": wanted}, path, _use_new_zipfile_serialization=new)
            found = arrays(path)
            assert set(found) == set(wanted)
            for name, tensor in wanted.items():
                assert found[name].shape == tuple(tensor.shape)
                if name == "c":
                    assert found[name].dtype.name == "bfloat16"
                    assert found[name].astype(np.float32).tolist() == [1.5, -2]
                else:
                    np.testing.assert_array_equal(found[name], tensor.numpy())

    def test_tensors_of_the_newer_format_stay_in_the_file(self, torch: Any, tmp_path: Path) -> None:
        path = tmp_path / "w.pt"
        torch.save({"a": torch.randn(300, 400)}, path)
        read = torch_file.read(path)
        assert str(path) in Path("/proc/self/maps").read_text()
        assert read.entries["a"].shape == (300, 400)

    @pytest.mark.parametrize("new", [True, False])
    def test_pickles_are_never_run(self, torch: Any, tmp_path: Path, new: bool) -> None:
        trap = tmp_path / "trap"

        class Evil:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(trap),)

        path = tmp_path / "w.pt"
        torch.save({"w": torch.ones(2), "x": Evil()}, path, _use_new_zipfile_serialization=new)
        message = refused(path)
        assert "is refused: it holds more than tensors" in message
        assert "posix.mkdir" in message
        assert not trap.exists()

    def test_refusals(self, torch: Any, tmp_path: Path) -> None:
        path = tmp_path / "w.pt"
        cases: list[tuple[Any, str]] = [
            ([1, 2], "holds list; expected weights by name"),
            ({"epoch": 3}, "holds no weights by name (module.state_dict()); found epoch"),
            ({"w": torch.ones(1).expand(10**12)}, "needs 4000000000000 bytes, but the file has"),
            ({f"w{n}": torch.ones(1).expand(300) for n in range(99)}, "far larger than the file"),
            ({"w": torch.eye(3).to_sparse()}, "is sparse, quantized, nested or without data"),
            ({"w": torch.ones(2, device="meta")}, "is sparse, quantized, nested or without data"),
            (torch.nn.Linear(2, 2), "is refused: it holds more than tensors"),
        ]
        for saved, message in cases:
            torch.save(saved, path)
            assert message in refused(path), message
        torch.jit.script(torch.nn.Linear(2, 2)).save(path)
        assert "is a TorchScript file" in refused(path)

    def test_compressed_and_repeated_members(self, torch: Any, tmp_path: Path) -> None:
        torch.save({"w": torch.zeros(10**6)}, tmp_path / "w.pt")
        with (
            zipfile.ZipFile(tmp_path / "w.pt") as old,
            zipfile.ZipFile(tmp_path / "small.pt", "w", zipfile.ZIP_DEFLATED) as small,
        ):
            for member in old.namelist():
                small.writestr(member, old.read(member))
        assert "its archive is compressed" in refused(tmp_path / "small.pt")
        with zipfile.ZipFile(tmp_path / "w.pt", "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr(archive.namelist()[0], b"other")
        assert "holds a name twice" in refused(tmp_path / "w.pt")

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(changes=CHANGES, cut=st.integers(0, 2000), new=st.booleans())
    def test_mutated_files(self, torch: Any, tmp_path: Path, changes: Any, cut: int, new: bool) -> None:
        path = tmp_path / "w.pt"
        state = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(5, dtype=torch.int64)}
        torch.save(state, path, _use_new_zipfile_serialization=new)
        data = bytearray(path.read_bytes())
        for place, text, removed in changes:
            at = place % len(data)
            data[at : at + removed] = text
        path.unlink()
        path.write_bytes(data[: len(data) - (cut if cut % 3 == 0 else 0)])
        try:
            found = open_checkpoint(path)
        except ModelError as error:
            assert "\n" not in str(error)
        else:
            for entry in found.entries.values():
                assert sum(map(len, entry.chunks())) == entry.nbytes
