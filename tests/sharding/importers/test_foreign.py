"""What a file of another program is said to be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sharding.errors import ModelError
from sharding.importers import format
from sharding.importers.foreign import KINDS, import_model, kind_of
from sharding.importers.format import FORMATS, ModelFormat


def test_first_bytes_count_before_names() -> None:
    marked = [kind for kind in KINDS if kind.magic]
    for kind in marked:
        head = bytes(kind.at) + kind.magic + bytes(8)
        for other in KINDS:
            assert kind_of(Path("m" + other.suffixes[0]), head) is kind
    for kind in KINDS:
        for suffix in kind.suffixes:
            assert kind_of(Path("m" + suffix.upper()), b"anything") is kind
    assert kind_of(Path("m.onnx"), b"anything") is None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffixes[0])
def test_it_is_said_what_to_do(kind: object, tmp_path: Path) -> None:
    (place,) = [at for at, item in enumerate(KINDS) if item is kind]
    path = tmp_path / ("m" + KINDS[place].suffixes[0])
    path.write_bytes(b"anything")
    with pytest.raises(ModelError) as caught:
        import_model(path)
    assert str(caught.value) == f"{path} is {KINDS[place].name}, and is not read here: {KINDS[place].advice}."


def test_a_name_alone_decides_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A format that another package brings is known by its bytes, whatever other runtimes' names say."""
    ours = FORMATS["foreign"]
    theirs = ModelFormat(lambda path, head: head == b"theirs", ours.import_model)
    for known in ({"foreign": ours, "theirs": theirs}, {"theirs": theirs, "foreign": ours}):
        monkeypatch.setattr(format, "FORMATS", SimpleNamespace(all=lambda known=known: known))
        assert format.told(Path("net.pb"), b"theirs") == "theirs"
        assert format.told(Path("net.pb"), b"others") == "foreign"
