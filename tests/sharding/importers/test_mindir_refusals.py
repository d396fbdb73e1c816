"""Files that cannot be converted: each is refused in a sentence that says why."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.common.encryption import Key
from sharding.errors import ModelError, OutputError
from sharding.importers import format_of, import_model
from sharding.importers.mindir.schema import messages
from sharding.importers.mindir.tracing.effects import PERSISTENT
from sharding.importers.write import write_onnx
from tests.sharding.importers import mindir_mutations
from tests.sharding.importers.mindir_files import File

DATA = Path(__file__).parents[2] / "data" / "mindir"
KEY = b"0123456789ABCDEF"
F = ("float32", [3])


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        import_model(path, **options)
    text = str(caught.value)
    assert "\n" not in text and text.endswith(".")
    return text


def changed(tmp_path: Path, change: Any, name: str = "mlp/model.mindir") -> Path:
    """A copy of a case with something changed in its message."""
    model = messages()["Model"]()
    model.ParseFromString((DATA / name).read_bytes())
    change(model)
    path = tmp_path / "model.mindir"
    path.write_bytes(model.SerializePartialToString())
    return path


def test_a_further_result_without_conversion_is_not_left_out(tmp_path: Path) -> None:
    """MaxPoolWithMask's mask is for a device's gradient: a network that gives it, too, is refused."""
    file = File()
    graph = file.graph("main", ("x", "float32", [1, 1, 4, 4]))
    settings = [graph.const(item) for item in ((2, 2), (2, 2), (0, 0), (1, 1), False, 34)]
    types = (("float32", [1, 1, 2, 2]), ("int32", [1, 1, 4, 4]))
    graph.gives(graph.prim("MaxPoolWithMask", graph["x"], *settings, types=types))
    message = refused(file.save(tmp_path / "mask.mindir"))
    assert "gives a further result of an operation, of which only the first is converted" in message


def test_samples_that_depend_on_each_box(tmp_path: Path) -> None:
    file = File()
    graph = file.graph("main", ("x", "float32", [1, 1, 9, 9]), ("boxes", "float32", [2, 5]))
    settings: dict[str, Any] = {"pooled_height": 3, "pooled_width": 2, "spatial_scale": 1.0, "sample_num": 0}
    found = graph.prim("ROIAlign", graph["x"], graph["boxes"], types=(("float32", [2, 1, 3, 2]),), **settings)
    graph.gives(found)
    message = refused(file.save(tmp_path / "boxes.mindir"))
    assert "ROIAlign: sample_num 0, whose samples depend on each box, has no conversion" in message


@pytest.mark.parametrize(
    ("kind", "operands", "settings"),
    [
        ("Eye", (10**9, 10**9), {}),
        ("LinSpace", (0.0, 1.0, 10**10), {}),
        ("TrilIndices", (), {"row": 10**10, "col": 1}),
        ("HistcExt", ("x",), {"bins": 10**10}),
        ("AffineGrid", ("theta", (1, 1, 10**6, 10**6)), {}),
        ("OneHot", ("i", 10**10, 1.0, 0.0), {}),
        ("CropAndResize", ("x", "boxes", "i", (10**10, 3)), {}),
        ("MatrixDiagV3", ("theta", 0, 10**9, 10**9, 0.0), {}),
        ("Im2Col", ("x",), {"ksizes": (10**6, 10**6)}),
        ("ExtractImagePatches", ("x",), {"ksizes": (1, 1, 10**6, 10**6)}),
    ],
)
def test_tables_as_large_as_a_small_file_can_ask_for(
    kind: str, operands: tuple[Any, ...], settings: dict[str, Any], tmp_path: Path
) -> None:
    """The importer made them: of 10**10 numbers it ran out of memory."""
    inputs = {"x": ("float32", [1, 1, 8, 8]), "theta": ("float32", [1, 2, 3]), "boxes": ("float32", [1, 4]),
              "i": ("int32", [1])}  # fmt: skip
    file = File()
    graph = file.graph("main", *((name, *of) for name, of in inputs.items() if name in operands))
    given = [graph[item] if isinstance(item, str) else graph.const(item) for item in operands]
    graph.gives(graph.prim(kind, *given, types=(("float32", [1]),), **settings))
    assert "is too large for a constant" in refused(file.save(tmp_path / "large.mindir"))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Split", {"axis": 0, "output_num": 10**9}),
        ("Unstack", {"axis": 0}),
        ("Chunk", {"dim": 0, "chunks": 10**9}),
        ("SplitTensor", {"dim": 0, "split_size": 1}),
    ],
)
def test_more_parts_than_an_operator_has(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    file = File()
    graph = file.graph("main", ("x", "float32", [10**9]))
    parts = graph.prim(kind, graph["x"], types=(F, F), **settings)
    graph.gives(graph.prim("TupleGetItem", parts, graph.const(0), types=(F,)))
    assert "1000000000 parts are too many results" in refused(file.save(tmp_path / "parts.mindir"))


@pytest.mark.parametrize("three", [False, True])
@pytest.mark.parametrize(
    ("length", "size", "wanted", "why"),
    [
        (8, 2, 0, "output_shape must be positive, found [0, 2"),
        (8, 2, -3, "output_shape must be positive, found [-3, 2"),
        (8, 0, 2, "ksize must be positive, found [0, 2"),
        (8, 9, 1, "1 windows of 9 do not fit into a length of 8"),
        (8, 2, 8, "8 windows of 2 do not fit into a length of 8"),
        (8, 2, 3 * 10**7, "30000000 windows of 2 do not fit into a length of 8"),
        (-1, 2, 10**10, "is too large for a constant"),
        (-1, 2**62, 2, "is too large for a constant"),
    ],
)
def test_windows_at_random_places_fit(
    three: bool, length: int, size: int, wanted: int, why: str, tmp_path: Path
) -> None:
    """MindSpore, too, refuses others. The importer made a table of all of them first."""
    axes = 3 if three else 2
    file = File()
    graph = file.graph("main", ("x", "float32", [1, 1, *[length] * axes]), ("s", "float32", [1, 1, axes]))
    settings = {"ksize": (size, *[2] * (axes - 1)), "output_shape": (wanted, *[2] * (axes - 1)),
                "format": "NCDHW" if three else "NCHW"}  # fmt: skip
    kind = "FractionalMaxPool3DWithFixedKsize" if three else "FractionalMaxPoolWithFixedKsize"
    types = (("float32", [1, 1, *[2] * axes]), ("int64", [1, 1, *[2] * axes]))
    both = graph.prim(kind, graph["x"], graph["s"], types=types, **settings)
    graph.gives(graph.prim("TupleGetItem", both, graph.const(0), types=types[:1]))
    assert why in refused(file.save(tmp_path / "windows.mindir"))


def test_version_0() -> None:
    path = DATA / "mlp" / "model_v0.mindir"
    assert format_of(path) == "mindir_old"
    assert "is MindIR of version 0, which MindSpore itself no longer reads: load the checkpoint" in refused(
        path
    )


def test_later_versions(tmp_path: Path) -> None:
    def later(model: Any) -> None:
        model.mind_ir_version = 4

    assert "is MindIR of version 4; versions 1 (MindSpore 2.0) and 3" in refused(changed(tmp_path, later))


def test_lite_files_say_what_to_convert_instead(tmp_path: Path) -> None:
    path = tmp_path / "model.ms"
    path.write_bytes(b"\x18\x00\x00\x00MSL2" + bytes(100))
    assert "is a MindSpore Lite file (.ms), whose operators are compiled for devices: convert" in refused(
        path
    )


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "model.mindir"
    path.write_bytes(b"no model at all")
    assert "is of no format that can be turned into ONNX" in refused(path)
    assert "cannot be read: No such file" in refused(tmp_path / "missing.mindir")
    assert "opset 11 cannot be written; expected 18 to 22" in refused(DATA / "mlp" / "model.mindir", opset=11)


@pytest.mark.parametrize(("name", "mode"), [("gcm", "AES-GCM"), ("cbc", "AES-CBC")])
def test_encrypted_files(tmp_path: Path, name: str, mode: str) -> None:
    pytest.importorskip(
        "cryptography", reason="cryptography is not installed: encrypted files cannot be read"
    )
    path = DATA / "mlp_encrypted" / f"model_aes_{name}.mindir"
    assert f"is encrypted ({mode}): give its key" in refused(path)
    other = "AES-CBC" if mode == "AES-GCM" else "AES-GCM"
    assert f"is encrypted with {mode}, but dec_mode is '{other}'" in refused(path, key=Key(KEY, other))
    assert "has 3 bytes; expected 16, 24, 32" in refused(path, key=Key(b"abc", mode))
    wrong = refused(path, key=Key(b"0123456789ABCDEG", mode))
    assert "cannot be decrypted: the key is wrong, or the file is damaged" in wrong
    plain = import_model(DATA / "mlp" / "model.mindir")
    assert len(import_model(path, key=Key(KEY, mode)).graph.node) == len(plain.graph.node)
    data = path.read_bytes()
    for length in (5, 23, 30, len(data) - 1):
        (tmp_path / "cut.mindir").write_bytes(data[:length])
        assert "damaged or truncated in the block at byte 0" in refused(
            tmp_path / "cut.mindir", key=Key(KEY, mode)
        )
    assert KEY.decode() not in repr(Key(KEY, mode))
    no_key = refused(DATA / "mlp" / "model.mindir", key=Key(KEY, mode))
    assert "is not encrypted, but a key was given" in no_key


def test_all_that_has_no_conversion_is_listed_with_its_layers(tmp_path: Path) -> None:
    file = File()
    main = file.graph("main", ("x", *F))
    x = main["x"]
    for kind in ("Foo", "Neg", "Bar", "Foo"):
        x = main.prim(kind, x, types=[F])
    main.gives(x)
    text = refused(file.save(tmp_path / "model.mindir"))
    assert "cannot be converted, for 2 reasons: Bar: no conversion (in Default/Bar-op0)" in text
    assert "Foo: no conversion (in Default/Foo-op0)" in text


def test_what_changes_weights_is_refused(tmp_path: Path) -> None:
    file = File()
    main = file.graph("main", ("x", *F))
    w = main.weight("w", np.zeros(3, np.float32))
    assigned = main.prim("Assign", w, main["x"], types=[F])
    state = main.prim("UpdateState", main.const(None), assigned)
    main.gives(main.prim("Depend", main.prim("Neg", main["x"], types=[F]), state, types=[F]))
    assert "Assign: it changes a parameter while it runs" in refused(file.save(tmp_path / "model.mindir"))


def test_truncation_at_every_place(tmp_path: Path) -> None:
    data = (DATA / "dyn_batch_mlp" / "model.mindir").read_bytes()
    path = tmp_path / "model.mindir"
    for length in range(1, len(data), 97):
        path.write_bytes(data[:length])
        assert mindir_mutations.outcome(path) == "refused", length


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """A copy of a model whose weights lie beside it."""
    shutil.copytree(DATA / "mlp_split", tmp_path / "split")
    return tmp_path / "split" / "model_graph.mindir"


def located(path: Path, **values: Any) -> Path:
    """The model with another place for its first weight."""
    model = messages()["Model"]()
    model.ParseFromString(path.read_bytes())
    for name, value in values.items():
        setattr(model.graph.parameter[0].external_data, name, value)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["/etc/passwd", "../model_variables/data_0", "a/../../b", "", "x\0y"])
def test_data_files_outside_of_the_folder(split: Path, location: str) -> None:
    assert "which is not a path inside" in refused(located(split, location=location))


def test_links_that_lead_out(split: Path) -> None:
    (split.parent / "out").symlink_to("/etc/passwd")
    assert "a link that leads out of" in refused(located(split, location="out"))


def test_data_files_that_are_missing_or_short(split: Path) -> None:
    data = split.parent / "model_variables" / "data_0"
    content = data.read_bytes()
    data.write_bytes(content[:100])
    assert "it is truncated" in refused(split)
    data.write_bytes(b"\x00" + content[1:])
    assert "has big-endian data" in refused(split)
    data.unlink()
    assert "which is not there: put the folder of the model's variables beside it" in refused(split)
    data.mkdir()
    assert "model_variables/data_0, which is not a file" in refused(split)
    data.rmdir()
    os.mkfifo(data)
    assert "model_variables/data_0, which is not a file" in refused(split)


@pytest.mark.parametrize(
    ("offset", "length"), [(-1, 4), (2**62, 4), (64, 2**62), (2**63 - 1, 2**63 - 1), (64, -4)]
)
def test_impossible_places_in_data_files(split: Path, offset: int, length: int) -> None:
    assert "it is truncated" in refused(located(split, offset=offset, length=length))


def test_weights_of_the_wrong_length(split: Path, tmp_path: Path) -> None:
    assert "bytes for its type and shape, but has 4" in refused(located(split, length=4))

    def shorter(model: Any) -> None:
        model.graph.parameter[0].dims[0] = 31

    assert "bytes for its type and shape, but has" in refused(changed(tmp_path, shorter))


def test_weights_that_are_stored_otherwise(tmp_path: Path) -> None:
    def compressed(model: Any) -> None:
        model.graph.parameter[0].compression_type = 2

    def none(model: Any) -> None:
        model.graph.parameter[0].ClearField("raw_data")

    def text(model: Any) -> None:
        model.graph.parameter[0].data_type = 8

    def unknown(model: Any) -> None:
        model.graph.parameter[0].data_type = 99

    assert "it is compressed (type 2): export it without compression" in refused(
        changed(tmp_path, compressed)
    )
    assert "has no data: export the network with its parameters" in refused(changed(tmp_path, none))
    assert "it holds text, which has no conversion" in refused(changed(tmp_path, text))
    assert "its element type 99 is not known" in refused(changed(tmp_path, unknown))


def test_structure_that_contradicts_itself(tmp_path: Path) -> None:
    def no_output(model: Any) -> None:
        del model.graph.output[:]

    def unknown_name(model: Any) -> None:
        model.graph.output[0].name = "nowhere"

    def circle(model: Any) -> None:
        node = next(node for node in model.graph.node if "ReLU" in node.op_type)
        node.input[0] = node.output[0]

    def big(model: Any) -> None:
        model.little_endian = False

    assert "it has no graph with an output" in refused(changed(tmp_path, no_output))
    assert "reads 'nowhere', which nothing gives" in refused(changed(tmp_path, unknown_name))
    assert "needs its own result" in refused(changed(tmp_path, circle))
    assert "has big-endian weights" in refused(changed(tmp_path, big))


def test_results_that_are_not_what_the_file_says(tmp_path: Path) -> None:
    def other_shape(model: Any) -> None:
        for node in model.graph.node:
            if "ReLU" in node.op_type:
                node.attribute[0].tensors[0].dims[-1] = 33

    text = refused(changed(tmp_path, other_shape))
    assert "ReLU: its result has the shape [4, 32], but the file says [4, 33]" in text


def test_the_output_never_replaces_weights(split: Path) -> None:
    with pytest.raises(OutputError, match="holds weights of the model itself"):
        write_onnx(
            import_model(DATA / "gpt_s" / "model.mindir"),
            DATA / "gpt_s" / "model.mindir",
            DATA / "gpt_s" / "model.mindir",
        )
    with pytest.raises(OutputError, match="is a folder"):
        write_onnx(import_model(split), split, split.parent)


def test_damaged_files(tmp_path: Path) -> None:
    """Each is converted or refused in a sentence; `mindir_mutations` does many more."""
    rng, files = random.Random(5), mindir_mutations.seeds()
    path = tmp_path / "model.mindir"
    found = set()
    for number in range(600):
        path.write_bytes(mindir_mutations.mutated(files[number % len(files)], rng))
        found.add(mindir_mutations.outcome(path))
    assert found == {"converted", "refused"}


@pytest.mark.parametrize(("shape", "batch"), [((), -2), ((2,), -3), ((2,), 2)])
def test_batch_axes_that_indices_have_not(shape: tuple[int, ...], batch: int, tmp_path: Path) -> None:
    """ONNX's own look at the shapes would end the process."""
    file = File()
    graph = file.graph("main", ("x", "float32", [4, 5, 6]), ("i", "int64", shape))
    found = graph.prim("Gather", graph["x"], graph["i"], graph.const(2), graph.const(batch), types=(F,))
    graph.gives(found)
    message = refused(file.save(tmp_path / "gather.mindir"))
    assert f"Gather: batch_dims {batch} is no number of axes of indices with {len(shape)}" in message


@pytest.mark.parametrize(
    ("kind", "k", "least"), [("TopkExt", -1, 0), ("TopkExt", 4, 0), ("Kthvalue", 0, 1), ("Kthvalue", -2, 1)]
)
def test_more_elements_than_there_are_or_fewer_than_none(
    kind: str, k: int, least: int, tmp_path: Path
) -> None:
    """ONNX Runtime itself ends with a negative number."""
    file = File()
    graph = file.graph("main", ("x", "float32", [2, 3]))
    graph.gives(graph.prim(kind, graph["x"], graph.const(k), types=(F, ("int64", [3]))))
    message = refused(file.save(tmp_path / "top.mindir"))
    assert f"{kind}: k must be from {least} to 3, found {k}" in message


@pytest.mark.parametrize("kind", ["Sum", "Min", "Max", "Prod"])
def test_fewer_segments_than_none(kind: str, tmp_path: Path) -> None:
    file = File()
    graph = file.graph("main", ("x", "float32", [4, 5]), ("i", "int32", [4]))
    given = (graph["x"], graph["i"], graph.const(-2))
    graph.gives(graph.prim(f"UnsortedSegment{kind}", *given, types=(("float32", [1, 5]),)))
    message = refused(file.save(tmp_path / "segments.mindir"))
    assert f"UnsortedSegment{kind}: num_segments must not be negative, found -2" in message


def test_a_name_that_is_too_long_ends_with_a_sentence() -> None:
    with pytest.raises(ModelError, match=r"\.onnx cannot be read: File name too long"):
        format_of("a" * 300 + ".onnx")


@pytest.mark.parametrize(
    ("kind", "settings", "refuses"),
    [
        ("ReLU", {}, False),
        ("ReLU", {"side_effect_mem": False}, False),
        ("ReLU", {"side_effect_mem": True}, True),
        ("ExpandDimsView", {"side_effect_mem": True}, False),
        ("InplaceAnything", {}, True),
        ("ScatterAddOfTomorrow", {}, True),
    ],
)
def test_what_says_that_it_changes_weights(
    kind: str, settings: dict[str, Any], refuses: bool, tmp_path: Path
) -> None:
    file = File()
    graph = file.graph("main", ("x", *F))
    more, shape = ([graph.const(0)], [1, 3]) if kind == "ExpandDimsView" else ([], [3])
    graph.gives(graph.prim(kind, graph["x"], *more, types=(("float32", shape),), **settings))
    path = file.save(tmp_path / "writes.mindir")
    if refuses:
        assert f"{kind}: {PERSISTENT}" in refused(path)
    else:
        import_model(path)


def test_nothing_is_no_number(tmp_path: Path) -> None:
    file = File()
    graph = file.graph("main", ("x", *F))
    graph.gives(graph.prim("Add", graph["x"], graph.const(None), types=(F,)))
    assert "expected a tensor or a number, found None" in refused(file.save(tmp_path / "none.mindir"))


def test_weights_of_an_open_length(tmp_path: Path) -> None:
    file = File()
    graph = file.graph("main", ("x", *F))
    graph.gives(graph.prim("Add", graph["x"], graph.weight("w", np.ones(3, np.float32)), types=(F,)))
    file.model.graph.parameter[0].dims[:] = [-1]
    assert "it holds data but its shape is not known" in refused(file.save(tmp_path / "open.mindir"))


@pytest.mark.parametrize(("x", "w"), [([2, 1, -1], [7, 16]), ([2, 1, 3], [7, -1])])
def test_recurrent_weights_of_an_open_length(x: list[int], w: list[int], tmp_path: Path) -> None:
    file = File()
    inputs = (("x", "float32", x), ("w", "float32", w), ("b", "float32", [16]))
    graph = file.graph("main", *inputs)
    found = graph.prim(
        "DynamicRNN", *(graph[name] for name, _, _ in inputs), types=(("float32", [2, 1, 4]),) * 8
    )
    graph.gives(graph.prim("TupleGetItem", found, graph.const(0), types=(("float32", [2, 1, 4]),)))
    assert "the weight's shape must be known" in refused(file.save(tmp_path / "open.mindir"))
