"""Which inputs carry state, and where in doubt none does: a wrong pair is worse than none."""

import json
from typing import Any

import pytest

from sharding.errors import OptionError, ShardError
from sharding.slices.manifest_fields import Field
from sharding.slices.state import StatePair, check_pairs, metadata_text, parse_metadata, read_pairs
from sharding.slices.state_names import of_layers, outputs_for
from sharding.slices.state_search import find

MS = "com.microsoft"
GROWS = (["b", 4, "past", 8], ["b", 4, "past + new", 8])
SAME = (["b", 4, 8], ["b", 4, 8])


def value(name: str, shape: Any, dtype: str = "float32") -> tuple[str, str, Any]:
    return name, dtype, shape


def concat(taken: str, made: str) -> tuple[str, str, list[str], list[str]]:
    return "", "Concat", [taken, f"new_{made}"], [made]


@pytest.mark.parametrize(
    ("taken", "made"),
    [
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.11.value", "present.11.value"),
        ("past_key_values.0.key", "present_key_values.0.key"),
        ("past_key_values.3.decoder.key", "present.3.decoder.key"),
        ("past.0.key", "present.0.key"),
        ("past_key_value.0.key", "present.0.key"),
        ("past_key_value_0", "present_key_value_0"),
        ("past_0", "present_0"),
        ("past_key_0", "present_key_0"),
        ("past_value_7", "present_value_7"),
        ("past_key_self_0", "present_key_self_0"),
        ("key_cache_0", "key_cache_0_out"),
        ("key_cache_0", "new_key_cache_0"),
        ("past_key_values_key_cache_0", "present_key_cache_0"),
        ("past_k_0", "new_k_0"),
        ("key_cache_0", "key_cache_out_0"),
        ("past_key_0_in", "past_key_0_out"),
        ("past_key_in", "past_key"),
        ("past_key_values", "presents"),
        ("past_key_values", "past_key_values_out"),
        ("past_key_values_in", "past_key_values"),
    ],
)
def test_caches_are_known_by_name(taken: str, made: str) -> None:
    before, after = GROWS
    found = find([value(taken, before)], [value(made, after)], [concat(taken, made)])
    assert found == (StatePair(taken, made, 2, "append"),)


@pytest.mark.parametrize(
    ("taken", "made"),
    [
        ("past_conv.0", "present_conv.0"),
        ("past_ssm.0", "present_ssm.0"),
        ("past_key_values.0.conv_state", "present.0.conv_state"),
        ("past_key_values.0.recurrent_state", "present.0.recurrent_state"),
        ("conv_state", "conv_state_out"),
        ("state", "stateN"),
        ("state", "state_out"),
        ("state_in", "state_out"),
        ("state", "new_state"),
        ("instate3", "outstate3"),
        ("h", "hn"),
        ("c", "cn"),
        ("h0", "hn"),
        ("h_0", "h_n"),
        ("h_in", "h_out"),
        ("hidden_in", "hidden_out"),
        ("input_states_1", "output_states_1"),
        ("in_cache0", "out_cache0"),
        ("input_cache0", "output_cache0"),
        ("old_cache0", "new_cache0"),
        ("prev.cache0", "next.cache0"),
        ("a/previous-cache0", "a/new-cache0"),
        ("cached_len_0", "new_cached_len_0"),
        ("cache_last_channel", "cache_last_channel_next"),
        ("cache_last_channel_len", "cache_last_channel_next_len"),
        ("att_cache", "r_att_cache"),
        ("recurrent_in", "recurrent_out"),
        ("hx", "hx_out"),
        ("rnn_hxs", "rnn_hxs_out"),
        ("prev_h", "h"),
        ("h_prev", "h_next"),
        ("prev_c", "current_c"),
        ("h_prev", "h_cur"),
        ("current_c", "next_c"),
        ("previous_state", "current_state"),
        ("last_h", "h"),
        ("h_tm1", "h_t"),
        ("lstm1_h", "lstm1_h_out"),
        ("mems_0", "new_mems_0"),
        ("history", "new_history"),
        ("carry_in", "carry_out"),
        ("fifo", "fifo_out"),
        ("conv_cache", "conv_cache_out"),
        ("r1i", "r1o"),
        ("hx", "hy"),
        ("cx_1", "cy_1"),
        ("lstm1_h", "lstm1_hn"),
        ("c_state.0", "c_state_out.0"),
        ("state_in_12", "state_out_12"),
        ("layers/state-0", "layers/state_new-0"),
        ("h0", "h_out0"),
        ("ssm.0", "ssm_out.0"),
        ("wkv_aa.0", "wkv_aa_new.0"),
        ("layers.0.wkv", "layers.0.wkv_new"),
        ("att_xx_0", "new_att_xx_0"),
        ("ffn_shift.3", "ffn_shift_out.3"),
        ("att_x_prev_in_0", "att_x_prev_out_0"),
    ],
)
def test_states_are_known_by_name(taken: str, made: str) -> None:
    before, after = SAME
    nodes = [("", "Add", [taken, "more"], [made])]
    found = find(
        [value("x", ["b", 3]), value(taken, before)], [value("y", ["b", 3]), value(made, after)], nodes
    )
    assert found == (StatePair(taken, made),)


@pytest.mark.parametrize(
    "name",
    [
        *("past_key_values.0.encoder.key", "past_key_cross_0", "past_key_values.5.encoder.value"),
        "past_crossattention_0_key",
    ],
)
def test_what_an_encoder_gave_is_computed_once(name: str) -> None:
    made = name.replace("past_key_values", "present").replace("past", "present")
    shape = ["b", 4, "encoder_length", 8]
    nodes = [("", "Identity", [name], [made])]
    assert find([value(name, shape)], [value(made, shape)], nodes) == (StatePair(name, made, None, "once"),)


@pytest.mark.parametrize(
    ("taken", "made"),
    [
        ("image", "image_out"),
        ("x", "y"),
        ("input", "output"),
        ("hidden_states", "hidden_states_out"),
        ("input_ids", "output_ids"),
        ("encoder_hidden_states", "new_encoder_hidden_states"),
        ("mask", "new_mask"),
        ("lstm_in", "lstm_out"),
        ("memes", "new_memes"),
        ("past_values", "values"),
        ("past_values_0", "values_0"),
        ("hidden_states_1", "hidden_states_out_1"),
        ("image_0", "image_out_0"),
        ("shift", "new_shift"),
        ("0", "1"),
        ("current_a", "current_b"),
        ("last_hidden_state", "current_hidden_state"),
    ],
)
def test_names_that_say_nothing_make_no_pair(taken: str, made: str) -> None:
    before, after = SAME
    assert find([value(taken, before)], [value(made, after)], [("", "Relu", [taken], [made])]) == ()


@pytest.mark.parametrize(
    ("before", "after", "dtype"),
    [
        (["b", 4, "past", 8], ["b", 4, "past", 16], "float32"),
        (["b", 4, "past", 8], ["b", "past", 32], "float32"),
        (["b", 4, "past", 8], ["b", 4, "past + new", 8], "float16"),
        ([1, 4, 5, 8], [1, 4, 6, 8], "float32"),
    ],
    ids=["length", "axes", "type", "next step is refused"],
)
def test_what_does_not_fit_is_no_pair(before: Any, after: Any, dtype: str) -> None:
    inputs, outputs = [value("past_0", before)], [value("present_0", after, dtype)]
    nodes = [concat("past_0", "present_0")]
    assert find(inputs, outputs, nodes) == ()
    with pytest.raises(OptionError, match="past_0=present_0"):
        find(inputs, outputs, nodes, given=[("past_0", "present_0")])


@pytest.mark.parametrize(
    ("before", "after", "axis"),
    [
        (["b", 4, "past", 8], ["b2", 4, "total", 8], 2),
        ([2, "b", 4, "past", 8], [2, "b", 4, "total", 8], 3),
        (["b*h", 8, "past"], ["b*h", 8, "total"], 2),
        (["b*h", "past", 8], ["b*h", "total", 8], 1),
        (["b", "past", 32], ["b", "past + new", 32], 1),
        ([None, 4, None, 8], [None, 4, None, 8], 2),
    ],
)
def test_shapes_tell_the_axis_that_grows(before: Any, after: Any, axis: int) -> None:
    (pair,) = find([value("past_0", before)], [value("present_0", after)], [concat("past_0", "present_0")])
    assert (pair.axis, pair.kind) == (axis, "append")


@pytest.mark.parametrize(
    "nodes",
    [
        [("", "Concat", ["past_0", "new"], ["all"]), ("", "Slice", ["all", "a", "b"], ["present_0"])],
        [("", "Slice", ["past_0", "a", "b"], ["rest"]), ("", "Concat", ["rest", "new"], ["present_0"])],
        [("", "Concat", ["new", "past_0"], ["present_0"])],
        [("", "ScatterND", ["past_0", "where", "new"], ["present_0"])],
        [("", "Gather", ["past_0", "beams"], ["g"]), ("", "Concat", ["g", "new"], ["present_0"])],
    ],
    ids=["window", "shifted", "in front", "written", "reordered"],
)
def test_a_cache_that_is_not_appended_to_is_replaced(nodes: Any) -> None:
    """Only where new positions surely stand behind the old ones may a rank keep the old ones."""
    before, after = GROWS
    inputs = [value("past_0", before), value("beams", ["n"], "int64")]
    assert find(inputs, [value("present_0", after)], nodes) == (StatePair("past_0", "present_0"),)


def test_names_are_believed_where_the_graph_cannot_be_looked_into() -> None:
    """A decoder with and without past in one graph: both are in the branches of an If."""
    before, after = GROWS
    names = ["past_key_values.0.decoder.key", "past_key_values.0.encoder.key"]
    made = ["present.0.decoder.key", "present.0.encoder.key"]
    nodes = [("", "If", ["use_cache_branch"], ["logits", *made])]
    inputs = [value("use_cache_branch", [1], "bool"), value(names[0], before), value(names[1], before)]
    outputs = [value("logits", ["b", "s", 9]), value(made[0], after), value(made[1], before)]
    assert find(inputs, outputs, nodes) == (
        StatePair(names[0], made[0], 2, "append"),
        StatePair(names[1], made[1], None, "once"),
    )


def test_a_stack_of_keys_and_values_grows() -> None:
    nodes = [
        ("", "Constant", [], ["zero"]),
        ("", "Gather", ["past_0", "zero"], ["key"]),
        ("", "Transpose", ["key"], ["turned"]),
        ("", "Concat", ["turned", "new"], ["longer"]),
        ("", "Unsqueeze", ["longer", "zero"], ["one"]),
        ("", "Concat", ["one", "other"], ["present_0"]),
    ]
    shapes = [2, "b", 4, "past", 8], [2, "b", 4, "past + new", 8]
    (pair,) = find([value("past_0", shapes[0])], [value("present_0", shapes[1])], nodes)
    assert (pair.axis, pair.kind) == (3, "append")


@pytest.mark.parametrize(
    ("domain", "op", "past", "axis", "buffer"),
    [
        (MS, "GroupQueryAttention", 3, 2, True),
        (MS, "MultiHeadAttention", 6, 2, False),
        ("", "Attention", 4, 2, False),
        (MS, "PagedAttention", 3, None, False),
        (MS, "DecoderMaskedMultiHeadAttention", 5, 2, False),
    ],
)
def test_operators_with_places_for_both_tell_pairs(
    domain: str, op: str, past: int, axis: int | None, buffer: bool
) -> None:
    """Whatever the names."""
    before, after = (["b", 4, "past", 8], ["b", 4, "all", 8]) if axis else (["n", 4, 8], ["n", 4, 8])
    taken = [f"in{i}" for i in range(past)] + ["a", "b"]
    nodes = [(domain, op, taken, ["out", "p", "q"]), ("", "Relu", ["out"], ["y"])]
    outputs = [value("y", ["b", 3]), value("p", after), value("q", after)]
    found = find([value("b", before), value("a", before)], outputs, nodes)
    kind = "append" if axis else "replace"
    assert found == (StatePair("b", "q", axis, kind, buffer), StatePair("a", "p", axis, kind, buffer))


@pytest.mark.parametrize(
    ("more", "buffer"),
    [
        ([], True),
        ([("", "Shape", ["p"], ["s"])], False),
        ([("", "Shape", ["b"], ["s"])], False),
        ([("", "Identity", ["p0"], ["p"])], True),
        ([("", "Identity", ["p0"], ["p"]), ("", "Shape", ["p0"], ["s"])], False),
        ([("", "Identity", ["b"], ["b0"])], True),
        ([("", "Identity", ["b"], ["b0"]), ("", "Shape", ["b"], ["s"])], False),
    ],
)
def test_a_state_that_the_graph_looks_at_is_as_long_as_it_says(more: list[Any], buffer: bool) -> None:
    """Keys and values alike, whichever of them is looked at."""
    moved = {name for _, op, names, results in more if op == "Identity" for name in (*names, *results)}
    key, present = ("b0" if "b0" in moved else "b"), ("p0" if "p0" in moved else "p")
    nodes = [(MS, "GroupQueryAttention", ["q", "", "", key, "a"], ["out", present, "r"]), *more]
    before, after = ["b", 4, "past", 8], ["b", 4, "all", 8]
    outputs = [value("out", ["b", 3]), value("p", after), value("r", after), value("s", [4])]
    found = find([value("b", before), value("a", before)], outputs, nodes)
    assert found == (StatePair("b", "p", 2, "append", buffer), StatePair("a", "r", 2, "append", buffer))


def test_a_buffer_of_fixed_length_is_replaced() -> None:
    """Where an input says how much of it is filled, past and present are the same buffer."""
    taken = ["q", "k", "v", "", "", "", "a", "b", "filled"]
    nodes = [(MS, "MultiHeadAttention", taken, ["out", "p", "q2"])]
    shape = ["b", 4, "longest", 8]
    (pair,) = find([value("a", shape)], [value("out", ["b", 3]), value("p", shape)], nodes)
    assert (pair.output, pair.kind, pair.axis) == ("p", "replace", None)


def test_recurrent_nodes_tell_their_states() -> None:
    """Of a stack of LSTMs whose states are cut from one input and put together again."""
    nodes = [
        ("", "Split", ["s", "n"], ["h_0", "c_0"]),
        ("", "LSTM", ["x", "w", "r", "", "", "h_0", "c_0"], ["y", "h_1", "c_1"]),
        ("", "Concat", ["h_1", "c_1"], ["t"]),
        ("", "GRU", ["y", "w", "r", "", "", "g"], ["z", "last"]),
    ]
    inputs = [value("x", ["n", 1, 4]), value("s", [2, 1, 8]), value("g", [1, 1, 8])]
    outputs = [value("z", ["n", 1, 1, 8]), value("last", [1, 1, 8]), value("t", [2, 1, 8])]
    assert find(inputs, outputs, nodes) == (StatePair("s", "t"), StatePair("g", "last"))


def test_a_state_that_reaches_another_output_is_not_guessed() -> None:
    nodes = [
        ("", "GRU", ["x", "w", "r", "", "", "a"], ["y", "last"]),
        ("", "Add", ["last", "x"], ["t"]),
    ]
    shape = [1, 1, 8]
    assert (
        find([value("x", shape), value("a", shape)], [value("y", [1, 1, 1, 8]), value("t", shape)], nodes)
        == ()
    )


def test_use_alone_tells_a_cache() -> None:
    """An input that is only joined with new positions, and what it is joined to goes on."""
    nodes = [
        ("", "Concat", ["a", "new"], ["p"]),
        ("", "MatMul", ["q", "p"], ["y"]),
        ("", "Shape", ["a"], ["length"]),
    ]
    before, after = GROWS
    inputs, outputs = [value("a", before)], [value("y", ["b", 3]), value("p", after)]
    assert find(inputs, outputs, nodes) == (StatePair("a", "p", 2, "append"),)
    used = [*nodes, ("", "Relu", ["a"], ["other"])]
    assert find(inputs, outputs, used) == ()
    unused = [nodes[0], nodes[2]]
    assert find(inputs, outputs, unused) == ()


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ([("", "Transpose", ["a"], ["turned"]), ("", "Shape", ["turned"], ["length"])], True),
        ([("", "Slice", ["a", "from", "to"], ["part"]), ("", "Relu", ["part"], ["other"])], False),
        ([("", "Concat", ["a", "new"], ["another"])], False),
        ([(MS, "Identity", ["a"], ["other"])], False),
        ([("", "Identity", ["a"], ["other"])], False),
        ([("", "Identity", ["a"], ["moved"]), ("", "Identity", ["moved"], ["other"])], False),
    ],
)
def test_what_else_reads_a_cache_that_use_alone_tells(more: list[Any], kept: bool) -> None:
    """Its length alone may be asked for: what anything computes of its elements, joins elsewhere or gives out
    is a model that needs them for more."""
    nodes = [("", "Concat", ["a", "new"], ["p"]), ("", "MatMul", ["q", "p"], ["y"]), *more]
    inputs, outputs = [value("a", GROWS[0])], [value("y", ["b", 3]), value("p", GROWS[1]), value("other", [])]
    assert find(inputs, outputs, nodes) == ((StatePair("a", "p", 2, "append"),) if kept else ())


@pytest.mark.parametrize(
    ("reader", "used"),
    [
        (("", "Transpose", ["p"], ["y"]), False),
        (("", "Transpose", ["p"], ["inner"]), True),
        ((MS, "Transpose", ["p"], ["y"]), True),
        (("", "Softmax", ["p"], ["y"]), True),
    ],
)
def test_what_only_moves_to_an_output_is_no_use_of_it(reader: Any, used: bool) -> None:
    nodes = [("", "Concat", ["a", "new"], ["p"]), reader]
    inputs, outputs = [value("a", GROWS[0])], [value("y", ["b", 3]), value("p", GROWS[1])]
    assert find(inputs, outputs, nodes) == ((StatePair("a", "p", 2, "append"),) if used else ())


def test_the_graph_overrules_names() -> None:
    """What a name pairs with one output is carried on to another."""
    before, after = GROWS
    nodes = [concat("past_0", "present_1"), concat("past_1", "present_0")]
    inputs = [value("past_0", before), value("past_1", before)]
    outputs = [value("present_0", after), value("present_1", after)]
    assert {pair.input for pair in find(inputs, outputs, nodes) if pair.output[-1] == pair.input[-1]} == set()


def test_a_user_names_pairs() -> None:
    inputs = [value("x", ["b", 3]), value("a", ["b", 8]), value("c", [1, 8])]
    outputs = [value("y", ["b", 3]), value("z", ["n", 8]), value("w", [2, 8])]
    nodes = [("", "Relu", ["a"], ["z"])]
    assert find(inputs, outputs, nodes) == ()
    assert find(inputs, outputs, nodes, given=[("a", "z")]) == (StatePair("a", "z"),)
    for given, said in (
        ([("b", "z")], "no input 'b'"),
        ([("a", "zz")], "no output 'zz'"),
        ([("a", "z"), ("x", "z")], "another pair already"),
        ([("c", "w")], r"\[1, 8\].*\[2, 8\]"),
    ):
        with pytest.raises(OptionError, match=said):
            find(inputs, outputs, nodes, given=given)


def test_a_file_beside_the_model_names_pairs_that_may_not_fit() -> None:
    inputs = [value("a", ["b", 8]), value("c", [1, 8])]
    outputs = [value("z", ["b", 8]), value("w", [2, 8])]
    assert find(inputs, outputs, [], named=[("a", "z"), ("c", "w"), ("d", "e")]) == (StatePair("a", "z"),)


# As JSON.

PAIRS = (StatePair("a", "b", 2, "append", True, "split:1*2"), StatePair("c", "d", placement="split:0/3"))


def test_pairs_are_read_as_they_were_written() -> None:
    assert parse_metadata(metadata_text(PAIRS), "rank_0.onnx") == PAIRS


def _json(**changes: Any) -> dict[str, Any]:
    whole = {"input": "a", "output": "b", "axis": 2, "kind": "append", "buffer": True, "placement": "split:1"}
    return {key: item for key, item in {**whole, **changes}.items() if item != "gone"}


@pytest.mark.parametrize(
    "data",
    [
        {}, [1], [{}], [_json(input="gone")], [_json(more=1)], [_json(input=3)], [_json(output=None)],
        [_json(axis=-1)], [_json(axis=True)], [_json(axis=None)], [_json(axis=1.5)], [_json(kind="grow")],
        [_json(kind="once")], [_json(buffer=1)], [_json(placement="partial")], [_json(placement="split")],
        [_json(placement=1)], [_json(), _json(output="c")], [_json(), _json(input="c")],
        [_json(input="\ud800")], [_json(axis=1 << 70)],
    ],
)  # fmt: skip
def test_wrong_pairs_are_refused_in_one_sentence(data: Any) -> None:
    with pytest.raises(
        ShardError, match=r"^rank_0.onnx: shardrun.state.*: slice the model again\.$"
    ) as caught:
        parse_metadata(json.dumps(data), "rank_0.onnx")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[", "[" * 5000, "null"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ShardError, match=r"shardrun.state must be a list"):
        parse_metadata(text, "rank_0.onnx")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"input": "x"}, r"\[0\].input"),
        ({"output": "x"}, r"\[0\].output"),
        ({"axis": 4}, r"\[0\].axis"),
        ({"placement": "split:2"}, r"\[0\].placement"),
        ({"placement": "split:9"}, r"\[0\].placement"),
        ({"placement": "split:3"}, r"\[0\].placement"),
        ({"placement": "split:1*3"}, r"\[0\].placement"),
    ],
)
def test_pairs_must_be_of_the_model_and_divide(change: dict[str, Any], where: str) -> None:
    item = Field("manifest.json", "$.state", [_json(**change)])
    shape = ["batch", 4, "past", 7]
    with pytest.raises(ShardError, match=where):
        check_pairs(item, read_pairs(item), {"a": shape}, {"b": shape}, 4)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", [".cache", "cache_len", "past_", "state."])
def test_a_name_of_a_megabyte_is_read_at_once(piece: str) -> None:
    """With a pattern that looks at the rest again for each piece that would take hours."""
    name = piece * (10**6 // len(piece))
    for found, _ in outputs_for(f"{name}!"):
        assert len(found) > len(name) // 2
    assert ("x_cache_next_len", "state") in list(outputs_for("x_cache_len"))


def test_patterns_stand_for_any_number_of_layers() -> None:
    names = [f"past.{layer}.key" for layer in (0, 9, 10, 127)]
    pairs = [("past.%d.key", "present.%d.key"), ("state", "state_out")]
    wanted = [(name, name.replace("past", "present")) for name in names]
    assert [*of_layers(pairs, [*names, "past..key", "past.x.key", "past.1.keys"])] == [*wanted, pairs[1]]


@pytest.mark.parametrize(
    ("name", "output", "offered"),
    [
        # What is "past" alone is "present" then; of one with a key's name all marks are known.
        ("past_0_in", "present_0_in", True),
        ("past_0_in", "past_0_out", False),
        ("past_0", "past_0_out", False),
        ("past_key_0_in", "past_key_0_out", True),
        ("past_key_values_in", "past_key_values_out", True),
        ("past.0.value_in", "past.0.value_out", True),
    ],
)
def test_outputs_of_what_is_past(name: str, output: str, offered: bool) -> None:
    assert (output in dict(outputs_for(name))) is offered
