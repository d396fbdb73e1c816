"""Which weight becomes which: rules, built-in maps, and the report of what does not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.errors import ModelError, OptionError
from sharding.importers.checkpoints.base import Checkpoint, Entry, bytes_of
from sharding.importers.checkpoints.match import Match, Target, match
from sharding.importers.checkpoints.rename import parse_rules

F32 = np.dtype(np.float32)


def checkpoint(**arrays: Any) -> Checkpoint:
    entries = {}
    for name, array in arrays.items():
        given = np.asarray(array)
        entries[name] = Entry(name, given.dtype, given.shape, (bytes_of(np.ascontiguousarray(given)),))
    return Checkpoint(Path("w.ckpt"), "test", entries)


def targets(**shapes: tuple[int, ...]) -> dict[str, Target]:
    return {name.replace("__", "."): Target(F32, shape) for name, shape in shapes.items()}


def dotted(**arrays: Any) -> Checkpoint:
    return checkpoint(**{name.replace("__", "."): array for name, array in arrays.items()})


def problem(found: Match, given: Checkpoint, **allowed: bool) -> str:
    settings = {"allow_missing": False, "allow_unexpected": False, **allowed}
    with pytest.raises(ModelError) as caught:
        found.check(given, **settings)
    return str(caught.value)


def test_rules_in_their_order() -> None:
    given = dotted(backbone__0__w=np.ones(2, F32), head__w=np.zeros(3, F32))
    rules = parse_rules([r"^backbone\.(\d+)=layers.\1", "head=out"])
    found = match(given, targets(layers__0__w=(2,), out__w=(3,)), rules)
    found.check(given, allow_missing=False, allow_unexpected=False)
    assert found.lines() == []
    assert found.found["layers.0.w"].array().tolist() == [1, 1]
    assert found.found["out.w"].array().tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "expected PATTERN=REPLACEMENT, or one of the maps mindspore"),
        ("=x", "expected PATTERN=REPLACEMENT"),
        ("(=x", "is not a regular expression"),
        (r"a=\3", "is not a regular expression: invalid group reference 3"),
        ("a{9999999999999}=b", "is not a regular expression"),
    ],
)
def test_wrong_rules(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_rules([text])
    assert message in str(caught.value)


def test_equals_signs_in_patterns() -> None:
    (rule,) = parse_rules(["a(?=b)=x"])
    assert rule.pattern.sub(rule.replacement, "ab ac") == "xb ac"


def test_two_weights_of_one_name() -> None:
    given = checkpoint(a1=np.ones(1), a2=np.ones(1))
    with pytest.raises(OptionError, match="gives two weights the name 'a': 'a1' and 'a2'"):
        match(given, targets(a=(1,)), parse_rules([r"\d="]))


def test_everything_that_does_not_fit_is_told() -> None:
    given = checkpoint(
        a=np.ones(2, np.float16), b=np.ones(3, F32), c=np.ones(2, np.int64), more=np.ones(1, F32)
    )
    found = match(given, targets(a=(2,), b=(2, 2), c=(2,), d=(1,)))
    assert found.lines() == [
        "1 weight missing in the checkpoint: d",
        "1 weight unexpected in the checkpoint: more",
        "2 weights of another shape or type: b (expected [2, 2], found [3]), c (expected float32, "
        "found int64)",
        "1 weight converted to another type: a from float16 to float32",
    ]
    text = problem(found, given)
    assert "w.ckpt does not fit the network: 2 of another shape or type: b (expected" in text
    assert "1 missing: d; 1 unexpected: more" in text
    assert "go on with" not in text, "shapes that differ cannot be allowed"
    good = match(checkpoint(a=np.ones(2), more=np.ones(1)), targets(a=(2,), d=(1,)))
    assert "or go on with --allow-missing --allow-unexpected" in problem(good, given)
    assert "or go on with --allow-missing)" in problem(good, given, allow_unexpected=True)
    good.check(given, allow_missing=True, allow_unexpected=True)
    none = match(checkpoint(x=np.ones(2)), targets(a=(2,)))
    assert "no name is the same" in problem(none, given, allow_missing=True, allow_unexpected=True)


def test_tied_weights_and_counters_are_not_missing() -> None:
    shared = object()
    wanted = {
        "embed.weight": Target(F32, (2,), shared),
        "head.weight": Target(F32, (2,), shared),
        "bn.num_batches_tracked": Target(np.dtype(np.int64), ()),
    }
    given = dotted(embed__weight=np.ones(2, F32), other__num_batches_tracked=np.array(3))
    found = match(given, wanted)
    assert (found.missing, found.unexpected) == ([], [])


@pytest.mark.parametrize("counter", [np.array(3, np.float16), np.array(3, np.float64), np.array([3])])
def test_a_counter_of_another_type_is_left_out(counter: np.ndarray[Any, Any]) -> None:
    """As in a checkpoint that was converted to float16 as a whole."""
    wanted = {**targets(a=(2,)), "bn.num_batches_tracked": Target(np.dtype(np.int64), ())}
    given = dotted(a=np.ones(2, F32), bn__num_batches_tracked=counter)
    found = match(given, wanted)
    found.check(given, allow_missing=False, allow_unexpected=False)
    assert (sorted(found.found), found.misshaped, found.missing) == (["a"], [], [])


def test_mindspore_names_in_both_directions() -> None:
    ours = targets(bn__weight=(2,), bn__bias=(2,), bn__running_mean=(2,), conv__weight=(4, 2, 3))
    theirs = targets(bn__gamma=(2,), bn__beta=(2,), bn__moving_mean=(2,), conv__weight=(4, 2, 1, 3))
    for source, goal in ((ours, theirs), (theirs, ours)):
        arrays = {name: np.full(item.shape, n, F32) for n, (name, item) in enumerate(source.items())}
        given = checkpoint(**arrays)
        plain = match(given, goal)
        assert "with --rename 'mindspore' 4 of 4 names would fit" in plain.hint or source is ours
        found = match(given, goal, parse_rules(["mindspore"]))
        found.check(given, allow_missing=False, allow_unexpected=False)
        for n, (name, item) in enumerate(goal.items()):
            array = found.found[name].array()
            assert array.shape == item.shape
            assert (array == n).all()


@pytest.mark.parametrize(
    ("prefix_given", "prefix_wanted", "rule"),
    [
        ("module.", "", "ddp"),
        ("_orig_mod.", "", "compiled"),
        ("net.", "", r"^net\.="),
        ("", "bert.", "^=bert."),
    ],
)
def test_a_hint_at_a_prefix_helps(prefix_given: str, prefix_wanted: str, rule: str) -> None:
    arrays = {f"{prefix_given}{name}": np.ones(2, F32) for name in ("a.weight", "b.weight")}
    wanted = {f"{prefix_wanted}{name}": Target(F32, (2,)) for name in ("a.weight", "b.weight")}
    given = checkpoint(**arrays)
    assert f"with --rename '{rule}' 2 of 2 names would fit" in match(given, wanted).hint
    assert len(match(given, wanted, parse_rules([rule])).found) == 2
