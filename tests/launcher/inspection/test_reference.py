"""What a path that is given as a model refers to, and that it is found out once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import sharding
from launcher.errors import ConfigError
from launcher.inspection.model_kinds import check_sliceable
from launcher.inspection.reference import refer
from sharding.slices import manifest
from tests.launcher.cli_tools import save_mlp


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = save_mlp(tmp_path_factory.mktemp("models") / "m.onnx")
    sharding.slice_model(path, 2, path.parent / "slices")
    for rank in range(3):
        shutil.copy(path, path.parent / f"part_{rank}.onnx")
    return path


@pytest.mark.parametrize(
    ("name", "kind", "form", "ranks"),
    [
        ("m.onnx", "file", "onnx", None),
        ("slices", "slices", None, 2),
        ("part_{}.onnx", "pattern", None, 3),
        ("absent.onnx", "other", None, None),
    ],
)
def test_kinds(model: Path, name: str, kind: str, form: str | None, ranks: int | None) -> None:
    found = refer(model.parent / name)
    assert (found.kind, found.format, found.encrypted) == (kind, form, False)
    count = found.rank_count()
    assert (None if count is None else count[1]) == ranks
    if ranks is not None:
        assert found.open(ranks).world_size == ranks
        with pytest.raises(ConfigError, match="7 are asked for by --ranks: leave out --ranks, or"):
            found.open(7)


def test_a_pattern_of_a_slice_folder(model: Path) -> None:
    found = refer(model.parent / "slices" / "rank_{}.onnx")
    whole = found.whole()
    assert (whole.path, whole.kind) == (model.parent / "slices", "slices")
    for name in ("m.onnx", "part_{}.onnx"):
        other = refer(model.parent / name)
        assert other.whole() is other


def test_a_model_that_is_not_there(model: Path) -> None:
    refer(model).check()
    refer(model.parent / "slices").check()
    with pytest.raises(ConfigError, match=r"absent\.onnx: no such file or folder"):
        refer(model.parent / "absent.onnx").check()


def test_a_manifest_is_read_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    original = manifest.read_manifest
    monkeypatch.setattr(manifest, "read_manifest", lambda folder: read.append(folder) or original(folder))
    found = refer(model.parent / "slices")
    assert found.open(2) is found.manifest
    assert found.rank_count() == (f"the slice folder {found.path}", 2)
    assert read == [found.path]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "model.safetensors.index.json",
            '{"weight_map": {"w": "a.safetensors"}}',
            "holds weights and no graph",
        ),
        ("list", '{"weight_map": {"w": "a.safetensors"}}', ""),  # whoever reads it says what is wrong
        ("m.onnx", "", ""),
        ("job.yaml", "ranks: 2", "steers a job and is no model"),
        ("manifest.json", "{}", "is the manifest of a slice folder"),
        ("x.py", "pass", "is a script and no model"),
        ("m.json", "\x08\x09", ""),  # as a model begins
    ],
)
def test_what_is_no_model_to_slice(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    if not said:
        check_sliceable(path)
        return
    with pytest.raises(ConfigError, match=said):
        check_sliceable(path)
