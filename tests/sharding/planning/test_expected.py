"""Lengths that plans are made for: what a user says, and one new token where a model has a cache."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sharding
from sharding.demands.options import SliceOptions
from sharding.errors import OptionError
from sharding.planning.expected import expected_sizes
from sharding.planning.plan import plan_model
from sharding.planning.saved_plan import read_saved_plan, save_plan
from sharding.reading.read import Source, read_model
from sharding.slices.manifest import read_manifest
from tests.sharding import graphs, lockstep
from tests.sharding.graphs import array
from tests.sharding.llama import sized
from tests.sharding.search.test_reuse import unrolled

pytestmark = pytest.mark.usefixtures("read_once")


def lengths(model: Path | Source, **given: int) -> dict[str, int]:
    source = read_model(model) if isinstance(model, Path) else model
    return dict(expected_sizes(source, given).lengths)


def decoder(
    path: Path, past: str, tokens: str = "ids", *, given_out: bool = True, cast: bool = False
) -> Path:
    """Keys and values lengthened by one product of the tokens' vectors; what is mixed comes out."""
    outputs = "float[batch, new, 16] y, float[batch, all, 16] longer"
    joined = "longer" if given_out and not cast else "joined"
    text = f"""g (float[batch, new, 16] {tokens}, float[batch, old, 16] {past}, float[batch, total] mask)
        => ({outputs if given_out else outputs.partition(", float[batch, all")[0]}) {{
      k = MatMul({tokens}, w)
      {joined} = Concat<axis = 1>({past}, k)
      {"longer = Identity(joined)" if cast and given_out else ""}
      turned = Transpose<perm = [0, 2, 1]>({joined})
      scores = MatMul({tokens}, turned)
      y = MatMul(scores, {joined})
    }}"""
    return graphs.save(path, text, {"w": array(16, 16)})


@pytest.mark.parametrize(
    ("past", "tokens", "given_out", "cast", "expected"),
    [
        ("past_key_values.0.key", "ids", True, False, {"new": 1}),
        ("state", "ids", True, False, {"new": 1}),
        ("state", "ids", True, True, {"new": 1}),
        ("state", "ids", False, False, {}),  # two inputs joined are no cache
        ("past", "inputs_embeds", False, False, {"new": 1}),
    ],
)
def test_a_decoder_is_planned_for_one_new_token(
    tmp_path: Path, past: str, tokens: str, given_out: bool, cast: bool, expected: dict[str, int]
) -> None:
    plain = past.replace(".", "_")
    path = decoder(tmp_path / "m.onnx", plain, tokens, given_out=given_out, cast=cast)
    assert lengths(path) == expected


@pytest.mark.parametrize(
    ("operator", "place"),
    [
        ("com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 2>", 3),
        ("com.microsoft.MultiHeadAttention<num_heads = 2>", 6),
        ("com.microsoft.DecoderMaskedMultiHeadAttention<num_heads = 2, kv_num_heads = 2>", 5),
        ("Attention<q_num_heads = 2, kv_num_heads = 2>", 4),
    ],
)
def test_what_an_operator_reads_as_past_is_a_cache(tmp_path: Path, operator: str, place: int) -> None:
    operands = ["x", "x", "x", *[""] * (place - 3), "k", "v"]
    text = f"""g (float[batch, new, 16] x, float[batch, 2, old, 8] k, float[batch, 2, old, 8] v)
    => (float[batch, new, 16] y, float[batch, 2, all, 8] pk, float[batch, 2, all, 8] pv) {{
      y, pk, pv = {operator}({", ".join(operands)})
    }}"""
    path = tmp_path / "m.onnx"
    onnx.save(graphs.model(text, {}, opset=23), path)
    assert lengths(path) == {"new": 1}


def test_what_a_user_says_counts_and_a_mask_covers_both(tmp_path: Path) -> None:
    source = read_model(sized(cache=True).save(tmp_path / "model.onnx"))
    assert lengths(source) == {"seq": 1}
    assert lengths(source, past=1000) == {"seq": 1, "past": 1000}
    assert lengths(source, seq=30, batch=4) == {"seq": 30, "batch": 4}
    sizes = expected_sizes(source, {"past": 1000})
    assert sizes.count(("batch", 8, "seq", "past + seq")) == 8 * 1001
    assert sizes.count(("8*batch", "seq")) == 8
    assert expected_sizes(source, {"batch": 4, "seq": 2}).count(("8*batch", "seq")) == 64
    masked = decoder(tmp_path / "masked.onnx", "past")
    assert lengths(masked, old=500) == {"new": 1, "old": 500}


def test_lengths_are_those_of_the_model(tmp_path: Path) -> None:
    path = sized(cache=True).save(tmp_path / "model.onnx")
    with pytest.raises(OptionError, match=r"no input has an open length 'sequence'.*it has batch, seq, past"):
        plan_model(path, 2, options=SliceOptions(dims={"sequence": 3}))
    with pytest.raises(OptionError, match=r"the length 'seq' must be a whole number, but is 1\.5"):
        plan_model(path, 2, options=SliceOptions(dims={"seq": 1.5}))  # type: ignore[dict-item]
    fixed = graphs.save(
        tmp_path / "f.onnx",
        "g (float[2, 16] x) => (float[2, 16] y) { y = MatMul(x, w) }",
        {"w": array(16, 16)},
    )
    with pytest.raises(OptionError, match="all its lengths are fixed"):
        plan_model(fixed, 2, options=SliceOptions(dims={"batch": 3}))


def test_a_length_decides_between_plans_that_are_right_for_all(tmp_path: Path) -> None:
    """For one row a collective a step takes longer than the ranks save by it; for many it does not."""
    path = unrolled(tmp_path / "model.onnx", steps=12, width=64, head=256)
    one, many = (plan_model(path, 2, options=SliceOptions(dims={"batch": size})) for size in (1, 4096))
    assert "state" not in one.split_weights and "state" in many.split_weights
    assert many.lengths == {"batch": 4096} and ("planned for", "batch=4096") in many.rows()
    assert many.to_json()["lengths"] == {"batch": 4096}
    for name, size in (("one", 1), ("many", 4096)):
        folder = tmp_path / name
        sharding.slice_model(path, 2, folder, options=SliceOptions(dims={"batch": size}))
        assert read_manifest(folder).lengths == {"batch": size}
        for batch in (1, 3):
            lockstep.assert_same(folder, path, {"x": array(batch, 12, 64)})


def test_a_saved_plan_knows_its_lengths(tmp_path: Path) -> None:
    path = sized(cache=True).save(tmp_path / "model.onnx")
    plan = plan_model(path, 2, options=SliceOptions(dims={"past": 300}))
    save_plan(plan, tmp_path / "plan.json")
    assert read_saved_plan(tmp_path / "plan.json").lengths == {"seq": 1, "past": 300}
    again = plan_model(path, 2, options=SliceOptions(plan=tmp_path / "plan.json"))
    assert again.lengths == plan.lengths and again.collectives == plan.collectives
    other = plan_model(path, 2, options=SliceOptions(plan=tmp_path / "plan.json", dims={"seq": 9}))
    assert other.lengths == {"seq": 9, "past": 300} and other.collectives == plan.collectives


def test_a_decoder_answers_for_prompts_of_any_length(tmp_path: Path) -> None:
    model = sized(cache=True)
    path = model.save(tmp_path / "model.onnx")
    sharding.slice_model(path, 2, tmp_path / "slices")
    for length, past in ((1, 0), (1, 7), (9, 0), (5, 70)):
        lockstep.assert_same(tmp_path / "slices", path, model.feeds(2, length, past))


def test_a_batch_counts_as_one_wherever_its_axis_is(tmp_path: Path) -> None:
    text = "g (float[batch, time, 8] x) => (float[time, batch, 8] y) { y = Transpose<perm = [1, 0, 2]>(x) }"
    source = read_model(graphs.save(tmp_path / "m.onnx", text, {}))
    sizes = expected_sizes(source, {"time": 5})
    assert [
        sizes.elements(value) for value in (source.model.graph.inputs[0], source.model.graph.outputs[0])
    ] == [40, 40]
    assert np.prod([sizes.length(axis) for axis in ("time", 3, None)]) == 5 * 3 * 64


@pytest.mark.parametrize(("domain", "cache"), [("", True), ("com.example.", False)])
def test_a_cache_may_be_moved_before_it_is_lengthened(tmp_path: Path, domain: str, cache: bool) -> None:
    """By standard operators, of which that is known."""
    text = f"""g (float[batch, new, 16] x, float[batch, 2, old, 16] kept)
    => (float[batch, new, 16] y, float[batch, all, 2, 16] longer) {{
      turned = {domain}Transpose<perm = [0, 2, 1, 3]>(kept) half = Cast<to = 1>(turned)
      two = Unsqueeze(x, at) both = Concat<axis = 2>(two, two)
      longer = Concat<axis = 1>(half, both) y = Identity(x)
    }}"""
    model = graphs.model(text, {"at": np.asarray([2])})
    if domain:
        model.opset_import.add(domain="com.example", version=1)
    source = read_model(graphs.mlp(tmp_path / "m.onnx"))
    source = replace(source, model=ir.serde.deserialize_model(model))
    assert dict(expected_sizes(source, {}).lengths) == ({"new": 1} if cache else {})
