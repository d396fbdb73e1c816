"""Manifests: written and read back, refused where they say what they cannot, shards checked against them."""

import copy
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.errors import ShardError
from sharding.slices import manifest as manifests
from sharding.slices.batch import BatchAxes
from sharding.slices.mesh import Mesh
from sharding.slices.never_empty import NeverEmpty
from sharding.slices.state import StatePair

DIGEST = "0" * 64


def example() -> manifests.Manifest:
    def rank(number: int) -> manifests.RankEntry:
        files = (
            manifests.FileEntry(f"rank_{number}.onnx", 3, DIGEST),
            manifests.FileEntry(f"rank_{number}.data", 4, DIGEST),
        )
        return manifests.RankEntry(number, f"rank_{number}.onnx", 4, files)

    return manifests.Manifest(
        source=manifests.FileEntry("model.onnx", 7, DIGEST),
        world_size=2,
        ranks=(rank(0), rank(1)),
        weights={"w": manifests.WeightEntry("split:1/3", "float32", (4, 6), 96, (0,))},
        collectives=(manifests.CollectiveEntry("AllReduce", "y", "float32", ("batch", None, 6)),),
        inputs=(manifests.TensorEntry("x", "float32", ("batch", 4)),),
        outputs=(manifests.TensorEntry("y", "float32", ("batch", 6)),),
        whole={"TopK": 2},
        strategy="data",
        mesh=Mesh.of(data=2),
        micro_batches=3,
        batch=BatchAxes({"x": 0}, {"y": 0}),
        created_by="shardrun 0.1.0",
        reason="data: all 96 B on each rank",
        lengths={"sequence": 1},
    )


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / manifests.FILE_NAME).open("wb") as file:
        file.truncate(manifests.MAX_BYTES + 1)  # takes no room on the disk
    with pytest.raises(ShardError, match=f"has {manifests.MAX_BYTES + 1} bytes; a manifest has at most"):
        manifests.read_manifest(tmp_path)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    manifests.write_manifest(tmp_path, example())
    assert manifests.read_manifest(tmp_path) == example()


def test_axes_that_must_not_be_empty(tmp_path: Path) -> None:
    known = dataclasses.replace(example(), never_empty=(NeverEmpty("GRU", {"x": 0}),))
    manifests.write_manifest(tmp_path, known)
    assert manifests.read_manifest(tmp_path) == known
    file = tmp_path / manifests.FILE_NAME
    before, behind = file.read_text("utf-8").split('"never_empty"')
    file.write_text('"never_empty"'.join((before, behind.replace('"x": 0', '"x": -1'))), "utf-8")
    with pytest.raises(ShardError, match=r"never_empty\[0\]\.axes.* must be a whole number"):
        manifests.read_manifest(tmp_path)


def test_inputs_of_any_number_of_axes(tmp_path: Path) -> None:
    entry = manifests.TensorEntry("x", "float32", (), open_rank=True)
    free = dataclasses.replace(example(), inputs=(entry,), batch=BatchAxes())
    manifests.write_manifest(tmp_path, free)
    assert manifests.read_manifest(tmp_path) == free
    text = (tmp_path / manifests.FILE_NAME).read_text("utf-8")
    for wrong, message in (
        (text.replace('"open_rank": true', '"open_rank": 1'), r"inputs\[0\].open_rank must be true or false"),
        (
            text.replace('"shape": [],', '"shape": [3],'),
            r"inputs\[0\].shape must be empty for a tensor of any",
        ),
    ):
        assert wrong != text
        (tmp_path / manifests.FILE_NAME).write_text(wrong, "utf-8")
        with pytest.raises(ShardError, match=message):
            manifests.read_manifest(tmp_path)


def test_state_of_any_number_of_axes(tmp_path: Path) -> None:
    """Its axis cannot be checked; that of a tensor with three axes is."""
    entries = tuple(
        manifests.TensorEntry(name, "float32", (), open_rank=True) for name in ("past", "present")
    )
    state = (StatePair("past", "present", 3, "append"),)
    free = dataclasses.replace(
        example(), inputs=entries[:1], outputs=entries[1:], batch=BatchAxes(), state=state
    )
    manifests.write_manifest(tmp_path, free)
    assert manifests.read_manifest(tmp_path) == free
    for key in ("inputs", "outputs"):
        known = dataclasses.replace(getattr(free, key)[0], shape=(1, 2, 3), open_rank=False)
        manifests.write_manifest(tmp_path, dataclasses.replace(free, **{key: (known,)}))
        with pytest.raises(ShardError, match=r"state\[0\]\.axis must be an axis of"):
            manifests.read_manifest(tmp_path)


def test_the_file_has_the_documented_keys() -> None:
    data = json.loads(example().to_json())
    assert list(data) == [
        *("format", "version", "created_by", "source", "world_size", "strategy", "mesh", "reason"),
        *(
            "micro_batches",
            "lengths",
            "batch",
            "ranks",
            "weights",
            "collectives",
            "inputs",
            "outputs",
            "whole",
        ),
    ]
    assert data["weights"]["w"] == {
        "placement": "split:1/3",
        "dtype": "float32",
        "shape": [4, 6],
        "bytes": 96,
        "stages": [0],
    }


def test_every_key_stands_in_the_page_on_formats() -> None:
    """In its section about the manifest, those that are left out where they are empty too."""
    text = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
    section = text[text.index("## Manifest, version") :]
    section = section[: section.index("\n## ")]
    kinds = (
        manifests.Manifest, manifests.FileEntry, manifests.RankEntry, manifests.WeightEntry,
        manifests.CollectiveEntry, manifests.TensorEntry, BatchAxes,
        manifests.StatePair,
    )  # fmt: skip
    names = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert {name for name in names if f'"{name}"' not in section and f"`{name}`" not in section} == set()


def test_lengths_may_be_left_out() -> None:
    data = json.loads(example().to_json())
    del data["lengths"]
    without = manifests.parse_manifest(json.dumps(data))
    assert without == dataclasses.replace(example(), lengths={})
    assert "lengths" not in json.loads(without.to_json())


def test_the_reason_may_be_left_out() -> None:
    data = json.loads(example().to_json())
    del data["reason"]
    without = manifests.parse_manifest(json.dumps(data))
    assert without == dataclasses.replace(example(), reason="") and "reason" not in json.loads(
        without.to_json()
    )


def test_reading_a_manifest_imports_nothing_heavy() -> None:
    code = (
        "import sys, sharding, sharding.slices.manifest; "
        "print([m for m in ('numpy', 'onnx', 'onnx_ir', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


CHANGES: list[tuple[list[Any], Any, str]] = [
    (["format"], "other", '"format": "shardrun-slices"'),
    (["version"], 1, "format version 1, but this shardrun reads version 2"),
    (["world_size"], 0, r"$.world_size must be a whole number of at least 1, but is 0"),
    (["world_size"], True, "$.world_size must be a whole number"),
    (["world_size"], 3, "$.ranks must be one entry for each rank 0..2, in order, but is [0, 1]"),
    (["mesh"], {"data": 2}, "$.mesh must be an object with the keys data, pipeline, tensor"),
    (["mesh", "data"], 3, "$.mesh must be a mesh of 2 ranks, the world size"),
    (["mesh", "tensor"], 0, '$.mesh["tensor"] must be a whole number of at least 1'),
    (["reason"], 3, "$.reason must be a string, but is 3"),
    (["lengths", "sequence"], 0, '$.lengths["sequence"] must be a whole number of at least 1, but is 0'),
    (["micro_batches"], 0, "$.micro_batches must be a whole number of at least 1"),
    (
        ["batch", "inputs", "x"],
        2,
        '$.batch.inputs must be an axis of one of the model\'s inputs, but is {"x": 2}',
    ),
    (["batch", "outputs"], {"z": 0}, "$.batch.outputs must be an axis of one of the model's outputs"),
    (["weights", "w", "stages"], 1, '$.weights["w"].stages must be a list'),
    (["collectives", 0, "stage"], -1, "$.collectives[0].stage must be a whole number"),
    (["source", "file"], "../model.onnx", "$.source.file must be the name of a file"),
    (["world_size"], 1 << 62, "$.ranks must be one entry for each rank 0..4611686018427387903"),
    (["inputs", 0, "name"], "\ud800", "$.inputs[0].name must be a string"),
    (["outputs", 0, "shape", 0], "\udfff", "$.outputs[0].shape[0] must be a string"),
    (["ranks", 0, "files", 0, "file"], "\ud800", "$.ranks[0].files[0].file must be the plain name"),
    (["whole"], {"\ud800": 1}, "$.whole must be an object with names that are text"),
    (["ranks", 0, "rank"], 1, "$.ranks must be one entry for each rank"),
    (["ranks"], {}, "$.ranks must be a list, but is {}"),
    (["ranks", 1, "files", 0, "file"], "../rank_1.onnx", "$.ranks[1].files[0].file must be the plain name"),
    (["ranks", 1, "files", 0, "file"], "/etc/passwd", "$.ranks[1].files[0].file must be the plain name"),
    (["ranks", 1, "files", 0, "file"], "..", "$.ranks[1].files[0].file must be the plain name"),
    (["ranks", 1, "files", 0, "file"], "a\0b", "$.ranks[1].files[0].file must be the plain name"),
    (["ranks", 1, "files", 0, "sha256"], "zz", "$.ranks[1].files[0].sha256 must be a SHA-256"),
    (["ranks", 0, "files", 1, "bytes"], -1, "$.ranks[0].files[1].bytes must be a whole number of at least 0"),
    (["ranks", 0, "model"], "other.onnx", "$.ranks[0].model must be one of the names"),
    (["weights", "w", "placement"], "diagonal", '$.weights["w"].placement must be a placement'),
    (["weights", "w", "shape"], [1.5], '$.weights["w"].shape[0] must be a whole number'),
    (["collectives", 0, "op"], 5, "$.collectives[0].op must be a string, but is 5"),
    (["inputs", 0, "shape", 1], [], "$.inputs[0].shape[1] must be a whole number"),
    (["whole", "TopK"], "2", '$.whole["TopK"] must be a whole number of at least 0, but is "2"'),
]


@pytest.mark.parametrize(("path", "value", "sentence"), CHANGES, ids=[str(change[0]) for change in CHANGES])
def test_a_wrong_value_is_named_with_its_place(path: list[Any], value: Any, sentence: str) -> None:
    data = json.loads(example().to_json())
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ShardError) as caught:
        manifests.parse_manifest(json.dumps(data), "DIR/manifest.json")
    assert sentence in str(caught.value)
    assert "DIR/manifest.json" in str(caught.value)


@pytest.mark.parametrize(
    "key", [key for key in json.loads(example().to_json()) if key not in {"reason", "lengths"}]
)
def test_a_missing_key_is_named(key: str) -> None:
    data = json.loads(example().to_json())
    del data[key]
    with pytest.raises(ShardError, match=key):
        manifests.parse_manifest(json.dumps(data))


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b'"x"', b"NaN"])
def test_what_is_no_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(ShardError):
        manifests.parse_manifest(text)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    code = "import sys; from sharding.slices.manifest import read_manifest; read_manifest(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "ShardError" in done.stderr and "manifest.json is not a file" in done.stderr


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="does not exist"):
        manifests.read_manifest(tmp_path)
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(ShardError, match="is not a file"):
        manifests.read_manifest(tmp_path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def _places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys: Any = data.keys() if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    return [path, *(place for key in keys for place in _places(data[key], (*path, key)))]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_value_anywhere_gives_a_manifest_or_a_sentence(data: st.DataObject) -> None:
    document = json.loads(example().to_json())
    path = data.draw(st.sampled_from(_places(document)[1:]))
    changed = copy.deepcopy(document)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = data.draw(_JSON)
    try:
        result = manifests.parse_manifest(json.dumps(changed))
    except ShardError as error:
        assert "manifest.json" in str(error)
    else:
        assert manifests.parse_manifest(result.to_json()) == result


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_sentence(text: bytes) -> None:
    with pytest.raises(ShardError, match=r"manifest\.json"):
        manifests.parse_manifest(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {f"rank_{rank}.{end}": f"{rank}{end}".encode() for rank in range(2) for end in ("onnx", "data")}
    for name, text in files.items():
        (tmp_path / name).write_bytes(text)

    def entry(name: str) -> manifests.FileEntry:
        return manifests.FileEntry(name, len(files[name]), manifests.sha256_of(tmp_path / name))

    ranks = tuple(
        manifests.RankEntry(r, f"rank_{r}.onnx", 5, (entry(f"rank_{r}.onnx"), entry(f"rank_{r}.data")))
        for r in range(2)
    )
    manifests.write_manifest(tmp_path, manifests.Manifest(entry("rank_0.onnx"), 2, ranks))
    return tmp_path


def test_an_intact_shard_passes(folder: Path) -> None:
    manifest = manifests.read_manifest(folder)
    assert manifests.verify_shard(folder, manifest, 1, 2).model == "rank_1.onnx"


def test_another_world_size_or_rank_is_refused_with_both_values(folder: Path) -> None:
    manifest = manifests.read_manifest(folder)
    with pytest.raises(ShardError, match=r"world size 2, but this job has world size 4"):
        manifests.verify_shard(folder, manifest, 0, 4)
    with pytest.raises(ShardError, match=r"Rank 2 has no shard .* 0\.\.1"):
        manifests.verify_shard(folder, manifest, 2, 2)


def test_a_rank_whose_shard_is_elsewhere_is_told_so(folder: Path) -> None:
    manifest = manifests.read_manifest(folder)
    ranks = (dataclasses.replace(manifest.ranks[0], files=()), manifest.ranks[1])
    manifests.write_manifest(folder, dataclasses.replace(manifest, ranks=ranks))
    manifest = manifests.read_manifest(folder)
    assert manifests.verify_shard(folder, manifest, 1, 2).rank == 1
    with pytest.raises(
        ShardError, match=r"holds no shard of rank 0, only of 1: slice the model with --rank 0"
    ):
        manifests.verify_shard(folder, manifest, 0, 2)


def test_a_flipped_bit_is_found_by_its_hash(folder: Path) -> None:
    manifest = manifests.read_manifest(folder)
    path = folder / "rank_1.data"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    with pytest.raises(ShardError, match=rf"SHA-256 {manifests.sha256_of(path)}, but its manifest says"):
        manifests.verify_shard(folder, manifest, 1, 2)
    assert manifests.verify_shard(folder, manifest, 0, 2).rank == 0
    assert manifests.verify_shard(folder, manifest, 1, 2, hashes=False).rank == 1


def test_a_truncated_or_missing_file_is_named(folder: Path) -> None:
    manifest = manifests.read_manifest(folder)
    (folder / "rank_0.data").write_bytes(b"0")
    with pytest.raises(ShardError, match=r"rank_0\.data of rank 0 has 1 bytes, but its manifest says 5"):
        manifests.verify_shard(folder, manifest, 0, 2)
    (folder / "rank_0.data").unlink()
    with pytest.raises(ShardError, match=r"rank_0\.data, which rank 0 needs, does not exist"):
        manifests.verify_shard(folder, manifest, 0, 2)
    (folder / "rank_0.data").mkdir()
    with pytest.raises(ShardError, match="is not a file"):
        manifests.verify_shard(folder, manifest, 0, 2)
