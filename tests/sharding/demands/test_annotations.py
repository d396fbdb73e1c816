"""The standard's multi-device annotations: written, read, followed, and refused where they cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharding
from sharding.demands.device_specs import SpecError, read_spec, write_spec
from sharding.demands.options import SliceOptions
from sharding.errors import OutputError, SliceError
from sharding.planning.plan import Plan, plan_model
from sharding.rules.base import Option
from sharding.rules.flow import FLOW
from sharding.slices.mesh import Mesh, parse_mesh
from sharding.slices.placement import REPLICATED, Placement, Split
from sharding.writing import annotate as annotating
from sharding.writing.annotate import annotate
from sharding.writing.write import write_slices
from tests.sharding import graphs, lockstep, merged_decoder
from tests.sharding.graphs import array
from tests.sharding.llama import Llama


def kept(before: Plan, after: Plan) -> None:
    """The same weights' placements, collectives and stages."""
    assert after.weights == before.weights
    assert after.collectives == before.collectives
    assert (after.stages, after.mesh.size) == (before.stages, before.mesh.size)


def round_trip(path: Path, mesh: str, feeds: dict[str, Any]) -> None:
    """Plan -> annotated copy -> the same plan, whose slices compute the same."""
    copy = path.with_name("annotated.onnx")
    plan = plan_model(path, parse_mesh(mesh).size, options=SliceOptions(mesh=parse_mesh(mesh)))
    annotate(plan, copy)
    onnx.checker.check_model(str(copy), full_check=True)
    expected = lockstep.reference(path, feeds)
    for name, value in lockstep.reference(copy, feeds).items():
        assert lockstep.relative_error(value, expected[name]) == 0  # plain ONNX Runtime does not mind
    again = plan_model(copy, plan.mesh.size)
    kept(plan, again)
    write_slices(again, path.with_name("slices"))
    lockstep.assert_same(path.with_name("slices"), path, feeds)


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize(
    "mesh", ["tensor=2", "tensor=4", "pipeline=2", "pipeline=2,tensor=2", "tensor=2,pipeline=2"]
)
def test_round_trip_of_grouped_query_attention(tmp_path: Path, mesh: str) -> None:
    llama = Llama()
    round_trip(llama.save(tmp_path / "m.onnx"), mesh, llama.feeds())


@pytest.mark.usefixtures("read_once")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["transformer", "resnet"])
def test_round_trip_of_bert_and_resnet_layers(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch", reason="torch exports the models of this test; pip install torch")
    from tests.sharding import networks

    networks.export(name, tmp_path / "m.onnx")
    round_trip(tmp_path / "m.onnx", "tensor=2", networks.feeds(name, 3))


QKV = """g (float[n, 12] x) => (float[n, 8] y) {
  a = MatMul(x, qkv)
  q, k, v = Split<axis = -1, num_outputs = 3>(a)
  s = Mul(q, k)
  t = Add(s, v)
  y = MatMul(t, out)
}"""


@pytest.mark.usefixtures("read_once")
def test_blocks_are_a_product_of_simple_dims(tmp_path: Path) -> None:
    path = graphs.save(tmp_path / "m.onnx", QKV, {"qkv": array(12, 48), "out": array(16, 8)})
    plan = plan_model(path, 2)
    assert plan.weights["qkv"] == (Split(1, 3),)
    annotate(plan, tmp_path / "a.onnx")
    node = onnx.load(tmp_path / "a.onnx").graph.node[0].device_configurations[0]
    spec = next(item for item in node.sharding_spec if item.tensor_name == "qkv")
    assert [(dim.dim_value, dim.num_shards) for dim in spec.sharded_dim[0].simple_sharding] == [
        (3, 1),
        (16, 2),
    ]
    assert list(spec.device) == [0, 1]
    round_trip(path, "tensor=2", {"x": array(5, 12)})


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize("same_folder", [True, False])
@pytest.mark.parametrize("external", [True, False])
def test_weights_stay_and_earlier_annotations_are_replaced(
    tmp_path: Path, same_folder: bool, external: bool
) -> None:
    path = graphs.mlp(tmp_path / "m.onnx", inner=48, external=external)
    copy = tmp_path / ("a.onnx" if same_folder else "away/a.onnx")
    copy.parent.mkdir(exist_ok=True)
    annotate(plan_model(path, 2), copy)
    for ranks in (3, 2):
        source = copy.with_name("before.onnx")
        copy.replace(source)
        annotate(plan_model(source, ranks, options=SliceOptions(annotations=False)), copy)
    found = onnx.load(copy)
    assert [item.num_devices for item in found.configuration] == [3, 2]
    assert all(len(node.device_configurations) == 2 for node in found.graph.node)
    weights = {item.name: item for item in found.graph.initializer}
    for item in onnx.load(path).graph.initializer:
        assert weights[item.name].raw_data == item.raw_data
    assert found.ir_version == 11
    files = {item.name for item in copy.parent.iterdir()}
    assert ("m.onnx.data" in files) == external
    for ranks in (2, 3):
        kept(plan_model(path, ranks), plan_model(copy, ranks))


def test_what_the_copy_may_not_overwrite(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "m.onnx", external=True)
    plan = plan_model(path, 2)
    for target, message in (
        (path, "is the model itself"),
        (tmp_path, "is not a file"),
        (tmp_path / "no" / "a.onnx", "its folder does not exist"),
    ):
        with pytest.raises(OutputError, match=message):
            annotate(plan, target)
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "m.onnx.data").write_text("other")
    with pytest.raises(OutputError, match="is there already, with other content"):
        annotate(plan, tmp_path / "away" / "a.onnx")
    assert [item.name for item in (tmp_path / "away").iterdir()] == ["m.onnx.data"]


# Annotations made by hand, or by onnx_ir.


def by_onnx_ir(path: Path, devices: int, change: Callable[[dict[str, ir.Node], ir.Model, Any], None]) -> Path:
    """The MLP, annotated through onnx_ir; its nodes by their outputs' names."""
    graphs.mlp(path, inner=48)
    model = ir.load(path)
    model.ir_version = 11
    configuration = model.add_device_configuration("mine", num_devices=devices)
    change({node.outputs[0].name or "": node for node in model.graph}, model, configuration)
    ir.save(model, path)
    return path


def test_one_annotation_steers_the_rest(tmp_path: Path) -> None:
    """Row-parallel first, against what the solver would do; what is not annotated follows."""

    def change(nodes: dict[str, ir.Node], model: ir.Model, mine: Any) -> None:
        weight = model.graph.initializers["w1"]
        nodes["a"].shard(weight, configuration=mine, axis=-2, num_shards=2, device_indices=[0, 1])

    path = by_onnx_ir(tmp_path / "m.onnx", 2, change)
    plan = plan_model(path, 2)
    assert plan.weights["w1"] == (Split(0),)
    assert plan_model(path, 2, options=SliceOptions(annotations=False)).weights["w1"] == (Split(1),)
    sharding.slice_model(path, 2, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(3, 16)})


def test_an_output_is_moved_to_where_it_is_annotated(tmp_path: Path) -> None:
    def change(nodes: dict[str, ir.Node], model: ir.Model, mine: Any) -> None:
        nodes["a"].shard(model.graph.initializers["w1"], configuration=mine, axis=1, num_shards=2)
        # No axis is cut: every device holds the relu's output whole.
        value = nodes["c"].outputs[0]
        spec = ir.ShardingSpec(value=value, device=(0, 1))
        nodes["c"].device_configurations = (ir.NodeDeviceConfiguration(mine, (spec,)),)

    path = by_onnx_ir(tmp_path / "m.onnx", 2, change)
    manifest = sharding.slice_model(path, 2, tmp_path / "slices")
    assert manifest.collectives[0].op == "AllGather"
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(3, 16)})


def test_stages_give_the_mesh(tmp_path: Path) -> None:
    llama = Llama()
    model = ir.load(llama.save(tmp_path / "m.onnx"))
    model.ir_version = 11
    mine = model.add_device_configuration("mine", num_devices=4)
    nodes = list(model.graph)
    middle = len(nodes) // 2
    nodes[middle - 1].set_pipeline_stage(mine, 1)  # the standard's example counts from 1
    nodes[middle].set_pipeline_stage(mine, 2)
    ir.save(model, tmp_path / "a.onnx")
    plan = plan_model(tmp_path / "a.onnx", 4)
    assert plan.mesh == Mesh.of(pipeline=2, tensor=2)
    write_slices(plan, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", tmp_path / "m.onnx", llama.feeds())


def annotated(path: Path, text: str) -> Path:
    """The MLP with annotations: lines ``NODE TENSOR AXIS=LENGTH/SHARDS,... devices=... group=KEY:A+B``."""
    model = onnx.load(graphs.mlp(path, inner=48))
    model.ir_version = 11
    model.configuration.add(name="two", num_devices=2)
    for line in filter(None, map(str.strip, text.splitlines())):
        which, tensor, *rest = line.split()
        target = next(item for item in model.graph.node if item.output[0] == which)
        if not target.device_configurations:
            target.device_configurations.add(configuration_id="two")
        spec = target.device_configurations[0].sharding_spec.add(tensor_name=tensor)
        for word in rest:
            key, value = word.split("=")
            if key == "devices":
                spec.device.extend(map(int, value.split(",")))
            elif key == "group":
                number, members = value.split(":")
                spec.index_to_device_group_map.add(key=int(number), value=map(int, members.split("+")))
            else:
                dim = spec.sharded_dim.add(axis=int(key))
                for simple in value.split(","):
                    length, _, shards = simple.rpartition("/")
                    item = dim.simple_sharding.add(num_shards=int(shards))
                    if length:
                        item.dim_value = int(length)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a w1 2=2", "tensor 'w1': axis 2: it must be in [-2, 1]"),
        ("a w1 1=0", "tensor 'w1': axis 1: num_shards is 0"),
        ("a w1 1=2 -1=1", "axis 1: it is given twice"),
        ("a w1 1=2 0=2", "two axes are cut"),
        ("a w1 1=3", "axis 1: 3 shards do not fit 2 ranks"),
        ("a w1 1=5/1,2", "axis 1: its dims are 5 x ?, but its length is 48"),
        ("a w1 1=16/1,3/2", "axis 1: length 3 cannot be cut into 2 equal shards"),
        ("a w1 1=24/2,2/2", "two of its fused dims are cut"),
        ("a x 0=2", "axis 0: its length is batch, and only known lengths can be cut"),
        ("a w1 1=2 devices=1,0", "devices 1, 0, expected 0, 1"),
        ("a w1 1=2 devices=0,2", "devices 0, 2, expected 0, 1"),
        ("a w1 devices=0", "devices 0, expected 0+1"),
        ("a w1 1=2 devices=-1,-2 group=-1:0 group=-1:1", "has a key twice"),
        ("a nowhere 1=2", "annotated for the tensor 'nowhere', which is none of its inputs"),
        ("a w1 1=2\na w1 1=2", "annotated twice for the tensor 'w1'"),
        ("d w2 1=2\nd c 1=2", "cannot take 'c' split on axis 1 and 'w2' split on axis 1 together"),
        ("c b 1=2,1", "its dims are ? x ?, but its length is 48"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_out_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = annotated(tmp_path / "m.onnx", text)
    with pytest.raises(SliceError) as caught:
        plan_model(path, 2)
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    node, _, _ = text.partition(" ")
    assert f"that makes '{node}'" in str(caught.value)


@pytest.mark.usefixtures("read_once")
def test_cuts_in_bodies_are_neither_written_nor_read(tmp_path: Path) -> None:
    """They would be lost without a word: bodies are planned without annotations."""
    path = tmp_path / "m.onnx"
    merged_decoder.build(path)
    plan = plan_model(path, 2)
    with pytest.raises(OutputError, match=r"it cuts .* in the body of a control-flow .* with --save-plan"):
        annotate(plan, tmp_path / "a.onnx")
    assert not (tmp_path / "a.onnx").exists()
    model = onnx.load(path)
    model.ir_version = 11
    model.configuration.add(name="two", num_devices=2)
    body = model.graph.node[0].attribute[0].g
    product = next(node for node in body.node if node.op_type == "MatMul")
    spec = product.device_configurations.add(configuration_id="two").sharding_spec.add()
    spec.tensor_name = product.input[1]
    spec.sharded_dim.add(axis=1).simple_sharding.add(num_shards=2)
    onnx.save(model, path)
    with pytest.raises(SliceError, match=r"cannot be cut on axis 1 as annotated: the node is in the body"):
        plan_model(path, 2)
    again = plan_model(path, 2, options=SliceOptions(annotations=False))
    assert again.collectives == plan.collectives


def test_an_operator_that_cannot(tmp_path: Path) -> None:
    text = """g (float[3, 16] x) => (float[3, 16] y) {
      a = MatMul(x, w)
      y = Hardmax<axis = 1>(a)
    }"""
    path = graphs.save(tmp_path / "m.onnx", text, {"w": array(16, 16)})
    model = onnx.load(path)
    model.configuration.add(name="two", num_devices=2)
    model.graph.node[1].name = "most"
    entry = model.graph.node[1].device_configurations.add(configuration_id="two")
    entry.sharding_spec.add(tensor_name="a").sharded_dim.add(axis=1).simple_sharding.add(num_shards=2)
    onnx.save(model, path)
    with pytest.raises(
        SliceError, match=r"node 'most' \(Hardmax\): it cannot take 'a' split on axis 1; it can take it "
    ):
        plan_model(path, 2)
    entry.sharding_spec[0].tensor_name = "y"
    onnx.save(model, path)
    with pytest.raises(SliceError, match=r"node 'most' \(Hardmax\): it cannot produce 'y' split on axis 1"):
        plan_model(path, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.configuration.add(name="two", num_devices=3), "two configurations have the name 'two'"),
        (lambda m: m.configuration.add(num_devices=3), "a configuration has the empty name"),
        (lambda m: m.configuration[0].device.append("cpu:0"), "names 1 device, but has num_devices 2"),
        (lambda m: annotation(m, 1, "x"), "which the model does not declare"),
        (lambda m: annotation(m, 0, "two"), "annotated twice for the config"),
        (lambda m: setattr(annotation(m, 1, "two"), "pipeline_stage", -1), "pipeline_stage -1"),
        (lambda m: m.configuration[0].ClearField("num_devices"), "for 0 ('two') devices, not for 2"),
        (lambda m: (
            m.configuration.add(name="again", num_devices=2),
            annotation(m, 1, "again"),
        ), "configurations 'two', 'again' are all for 2 devices"),
    ],
)  # fmt: skip
def test_configurations_that_contradict(tmp_path: Path, change: Callable[[Any], Any], message: str) -> None:
    path = annotated(tmp_path / "m.onnx", "a w1 1=2")
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    with pytest.raises(SliceError) as caught:
        plan_model(path, 2)
    assert message in str(caught.value)
    assert plan_model(path, 2, options=SliceOptions(annotations=False)).split_weights


def annotation(model: onnx.ModelProto, node: int, configuration: str) -> onnx.NodeDeviceConfigurationProto:
    """A new, empty annotation of a node."""
    return model.graph.node[node].device_configurations.add(configuration_id=configuration)


def test_other_numbers_of_ranks(tmp_path: Path) -> None:
    path = annotated(tmp_path / "m.onnx", "a w1 1=2")
    with pytest.raises(SliceError, match=r"for 2 \('two'\) devices, not for 4: .*--mesh data=2,tensor=2"):
        plan_model(path, 4)
    assert plan_model(path, 4, options=SliceOptions(mesh=Mesh.of(data=2, tensor=2))).tensor_size == 2
    assert plan_model(path, 1).world_size == 1


def test_a_stage_that_reads_from_a_later_one(tmp_path: Path) -> None:
    path = annotated(tmp_path / "m.onnx", "a w1\nd w2")
    model = onnx.load(path)
    model.graph.node[0].device_configurations[0].pipeline_stage = 1
    model.graph.node[3].device_configurations[0].pipeline_stage = 0
    onnx.save(model, path)
    with pytest.raises(
        SliceError, match=r"that makes 'd' is annotated with pipeline_stage 0, but reads what"
    ):
        plan_model(path, 2)


PLACEMENTS = st.sampled_from(
    [REPLICATED, Split(0), Split(1), Split(1, 3), Split(1, 1, 2), Split(1, 2, 3), Split(0, 2, 6)]
)


@given(placement=PLACEMENTS, first=st.integers(0, 20))
def test_specs_and_placements(placement: Placement, first: int) -> None:
    devices = range(first, first + 6)
    spec = onnx.ShardingSpecProto()
    write_spec(spec, "w", placement, (24, 36), devices)
    expected = REPLICATED if isinstance(placement, Split) and placement.copies == 6 else placement
    assert read_spec(spec, (24, 36), devices) == expected


_SIMPLE = st.builds(
    lambda length, shards: onnx.SimpleShardedDimProto(dim_value=length, num_shards=shards),
    st.none() | st.integers(-2, 50) | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.integers(-2, 50) | st.integers(-(2**63), 2**63 - 1),
)
_DIM = st.builds(
    lambda axis, simple: onnx.ShardedDimProto(axis=axis, simple_sharding=simple),
    st.none() | st.integers(-4, 4) | st.integers(-(2**63), 2**63 - 1),
    st.lists(_SIMPLE, max_size=3),
)
_SPEC = st.builds(
    lambda devices, groups, dims: onnx.ShardingSpecProto(
        tensor_name="w",
        device=devices,
        index_to_device_group_map=[onnx.IntIntListEntryProto(key=key, value=value) for key, value in groups],
        sharded_dim=dims,
    ),
    st.lists(st.integers(-3, 5), max_size=4),
    st.lists(st.tuples(st.integers(-3, 3), st.lists(st.integers(-1, 5), max_size=4)), max_size=3),
    st.lists(_DIM, max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(spec=_SPEC, shape=st.none() | st.lists(st.none() | st.just("n") | st.integers(0, 48), max_size=3))
def test_any_spec_is_a_placement_or_an_error(spec: Any, shape: list[Any] | None) -> None:
    try:
        placement = read_spec(spec, shape, range(4))
    except SpecError as error:
        assert str(error) and "\n" not in str(error)
        return
    if isinstance(placement, Split):
        assert shape is not None
        assert shape[placement.axis] % (placement.parts(4) * placement.blocks) == 0


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_annotation_is_followed_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever the nodes of a model say: a plan that computes the same, or one sentence."""
    folder = tmp_path_factory.mktemp("any")
    path = graphs.mlp(folder / "m.onnx", inner=48)
    model = onnx.load(path)
    model.configuration.add(name="c", num_devices=2)
    for node in model.graph.node:
        if data.draw(st.booleans()):
            entry = node.device_configurations.add(configuration_id="c")
            for name in [*node.input, *node.output]:
                axis = data.draw(st.sampled_from([None, None, 0, 1, -1]))
                if axis is not None:
                    spec = entry.sharding_spec.add(tensor_name=name)
                    spec.sharded_dim.add(axis=axis).simple_sharding.add(
                        num_shards=data.draw(st.sampled_from([1, 2, 2]))
                    )
            stage = data.draw(st.sampled_from([None, None, None, 0, 1]))
            if stage is not None:
                entry.pipeline_stage = stage
    onnx.save(model, path)
    try:
        sharding.slice_model(path, 2, folder / "slices", allow_replicated=True)
    except SliceError as error:
        assert "\n" not in str(error)
        assert not (folder / "slices").exists()
        return
    lockstep.assert_same(folder / "slices", path, {"x": array(3, 16)})


@pytest.mark.parametrize(
    ("option", "path", "domain", "refused"),
    [
        (Option((REPLICATED,), (Split(0),)), ("then",), "", True),
        (Option((Split(0),), (REPLICATED,)), ("then",), "", True),
        (Option((REPLICATED,), (REPLICATED,)), ("then",), "", False),
        (Option((REPLICATED,), (Split(0),)), (), "", False),
        (Option((REPLICATED,), (Split(0),)), ("then",), FLOW, False),
    ],
)
def test_what_is_cut_in_a_body_cannot_be_annotated(
    option: Option, path: tuple[str, ...], domain: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its inputs or what it makes; the nodes that stand for its ends are no nodes of the file."""
    node = ir.Node(domain, "Expand", [ir.Value(name="x")])
    node.outputs[0].name = "made"
    step = SimpleNamespace(node=node, options=[option])
    plan: Any = SimpleNamespace(steps=[step], choices=[0], source=SimpleNamespace(path="m.onnx"))
    monkeypatch.setattr(annotating, "paths", lambda _: [path])
    if not refused:
        annotating._check_bodies(plan)
        return
    with pytest.raises(OutputError, match="in the body of a control-flow"):
        annotating._check_bodies(plan)
