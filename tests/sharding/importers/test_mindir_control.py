"""Branches and loops of MindIR in ONNX Runtime against the same programs in Python."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sharding.errors import ModelError
from sharding.importers import import_model
from sharding.importers.mindir.tracing import trace
from tests.sharding import graphs
from tests.sharding.importers.mindir_files import File, Graph

F = ("float32", [3])
S = ("int32", [])
X, N = ("x", *F), ("n", *S)
Array = np.ndarray[Any, Any]


def one(graph: Graph) -> str:
    return graph.const(np.int32(1))


def run(file: File, tmp_path: Path, **feeds: Any) -> list[Array]:
    model = import_model(file.save(tmp_path / "model.mindir"))
    onnx.checker.check_model(model, full_check=True)
    return graphs.session(model).run(None, {name: np.asarray(value) for name, value in feeds.items()})


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def broken_loop(early: str = "after") -> File:
    """i = 0; while i < n: x *= 2; if sum(x) > 100: break (or return -x); i += 1; return x + 1"""
    file = File()
    main = file.graph("main", X, N)
    main.gives(main.call("header", main["x"], main.const(np.int32(0)), main["n"], types=[F]))
    header = file.graph("header", X, ("i", *S), N)
    condition = header.prim("Less", header["i"], header["n"], types=[("bool", [])])
    body = header.partial("body", header["x"], header["i"], header["n"])
    header.gives(header.switch(condition, body, header.partial("after", header["x"])))
    loop = file.graph("body", X, ("i", *S), N)
    doubled = loop.prim("Mul", loop["x"], loop.const(np.float32(2)), types=[F])
    total = loop.prim("ReduceSum", doubled, loop.const(()), loop.const(False), types=[("float32", [])])
    large = loop.prim("Greater", total, loop.const(np.float32(100)), types=[("bool", [])])
    again = loop.partial("again", doubled, loop["i"], loop["n"])
    loop.gives(loop.switch(large, loop.partial(early, doubled), again))
    go = file.graph("again", X, ("i", *S), N)
    more = go.prim("Add", go["i"], one(go), types=[S])
    go.gives(go.call("header", go["x"], more, go["n"], types=[F]))
    after = file.graph("after", X)
    after.gives(after.prim("Add", after["x"], after.const(np.float32(1)), types=[F]))
    if early != "after":
        negative = file.graph(early, X)
        negative.gives(negative.prim("Neg", negative["x"], types=[F]))
    return file


@pytest.mark.parametrize("early", ["after", "early"])
@pytest.mark.parametrize("n", [0, 1, 3, 50])
def test_loop_that_is_left_early(tmp_path: Path, early: str, n: int) -> None:
    x = np.array([1, 2, 3], np.float32)
    want, left = x.copy(), False
    for _ in range(n):
        want = want * 2
        if want.sum() > 100:
            left = True
            break
    want = -want if left and early == "early" else want + 1
    (found,) = run(broken_loop(early), tmp_path, x=x, n=np.int32(n))
    assert np.array_equal(found, want)


def test_what_follows_a_loop_is_outside_of_it(tmp_path: Path) -> None:
    model = import_model(broken_loop().save(tmp_path / "model.mindir"))
    assert kinds(model)[-2:] == ["Add", "Identity"] and "Loop" in kinds(model)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_loops_in_loops(tmp_path: Path, n: int) -> None:
    """for i in range(n): for j in range(i): x = tanh(x) + w; x = x * 1.5"""
    file = File()
    main = file.graph("main", X, N)
    w = main.weight("w", np.array([0.5, -1, 2], np.float32))
    zero = main.const(np.int32(0))
    main.gives(main.call("outer", main["x"], zero, main["n"], w, types=[F]))
    state = (X, ("i", *S), N, ("w", *F))
    outer = file.graph("outer", *state)
    go = outer.prim("Less", outer["i"], outer["n"], types=[("bool", [])])
    held = [outer[name] for name in ("x", "i", "n", "w")]
    outer.gives(outer.switch(go, outer.partial("enter", *held), outer.partial("end", outer["x"])))
    enter = file.graph("enter", *state)
    held = [enter[name] for name in ("i", "n", "w")]
    enter.gives(enter.call("inner", enter["x"], enter.const(np.int32(0)), *held, types=[F]))
    deep = (X, ("j", *S), ("i", *S), N, ("w", *F))
    inner = file.graph("inner", *deep)
    go = inner.prim("Less", inner["j"], inner["i"], types=[("bool", [])])
    held = [inner[name] for name in ("x", "j", "i", "n", "w")]
    leave = inner.partial("leave", *(inner[name] for name in ("x", "i", "n", "w")))
    inner.gives(inner.switch(go, inner.partial("step", *held), leave))
    step = file.graph("step", *deep)
    x = step.prim("Add", step.prim("Tanh", step["x"], types=[F]), step["w"], types=[F])
    j = step.prim("Add", step["j"], one(step), types=[S])
    step.gives(step.call("inner", x, j, step["i"], step["n"], step["w"], types=[F]))
    leave_graph = file.graph("leave", *state)
    x = leave_graph.prim("Mul", leave_graph["x"], leave_graph.const(np.float32(1.5)), types=[F])
    i = leave_graph.prim("Add", leave_graph["i"], one(leave_graph), types=[S])
    leave_graph.gives(leave_graph.call("outer", x, i, leave_graph["n"], leave_graph["w"], types=[F]))
    end = file.graph("end", X)
    end.gives(end["x"])

    x0 = np.array([0.25, 1, -3], np.float32)
    want = x0.copy()
    for i in range(n):
        for _ in range(i):
            want = np.tanh(want) + np.array([0.5, -1, 2], np.float32)
        want = want * np.float32(1.5)
    (found,) = run(file, tmp_path, x=x0, n=np.int32(n))
    np.testing.assert_allclose(found, want, rtol=1e-5)


def branches(count: int) -> File:
    """for k in range(count): x = x + 1 if n > k else x * 2, each branch in graphs of its own."""
    file = File()
    main = file.graph("main", X, N)
    main.gives(main.call("if_0", main["x"], main["n"], types=[F]))
    for k in range(count):
        graph = file.graph(f"if_{k}", X, N)
        condition = graph.prim("Greater", graph["n"], graph.const(np.int32(k)), types=[("bool", [])])
        ways = [graph.partial(f"{name}_{k}", graph["x"], graph["n"]) for name in ("add", "double")]
        graph.gives(graph.switch(condition, *ways))
        for name, kind, value in (("add", "Add", 1), ("double", "Mul", 2)):
            way = file.graph(f"{name}_{k}", X, N)
            x = way.prim(kind, way["x"], way.const(np.float32(value)), types=[F])
            way.gives(way.call(f"if_{k + 1}", x, way["n"], types=[F]))
    end = file.graph(f"if_{count}", X, N)
    end.gives(end["x"])
    return file


def test_branches_one_after_another_meet_again(tmp_path: Path) -> None:
    x = want = np.array([1, 2, 3], np.float32)
    file = branches(24)
    for k in range(24):
        want = want + 1 if k < 10 else want * 2
    (found,) = run(file, tmp_path, x=x, n=np.int32(10))
    assert np.array_equal(found, want)
    model = import_model(tmp_path / "model.mindir")
    assert kinds(model).count("If") == 24  # and none in a branch of another
    assert len(model.SerializeToString()) < 40_000


@pytest.mark.parametrize("index", [0, 1, 2, -1])
def test_choice_by_index(tmp_path: Path, index: int) -> None:
    file = File()
    main = file.graph("main", X, N)
    layer = main.prim("SwitchLayer", main["n"], main.prim("MakeTuple", "a", "b", "c"))
    main.gives(main.prim("Neg", main.call(layer, main["x"], types=[F]), types=[F]))
    for name, kind in (("a", "Tanh"), ("b", "Abs"), ("c", "Exp")):
        graph = file.graph(name, X)
        graph.gives(graph.prim(kind, graph["x"], types=[F]))
    x = np.array([1, -2, 0.5], np.float32)
    functions: list[Callable[[Array], Array]] = [np.tanh, np.abs, np.exp]
    (found,) = run(file, tmp_path, x=x, n=np.int32(index))
    np.testing.assert_allclose(found, -functions[index](x), rtol=1e-5)


def test_tuples_out_of_branches(tmp_path: Path) -> None:
    file = File()
    main = file.graph("main", X, N)
    condition = main.prim("Greater", main["n"], main.const(np.int32(0)), types=[("bool", [])])
    pair = main.switch(condition, main.partial("swap", main["x"]), main.partial("keep", main["x"]))
    both = [main.prim("TupleGetItem", pair, main.const(index), types=[F]) for index in (1, 0)]
    main.gives(main.prim("MakeTuple", *both))
    for name, order in (("swap", 1), ("keep", -1)):
        graph = file.graph(name, X)
        items = [graph["x"], graph.prim("Neg", graph["x"], types=[F])]
        graph.gives(graph.prim("MakeTuple", *items[::order]))
    x = np.array([1, 2, 3], np.float32)
    for n, want in ((1, (-x, x)), (0, (x, -x))):
        assert all(
            np.array_equal(a, b) for a, b in zip(run(file, tmp_path, x=x, n=np.int32(n)), want, strict=True)
        )


def test_conditions_that_are_known_are_decided(tmp_path: Path) -> None:
    file = File()
    main = file.graph("main", X)
    main.gives(main.switch(main.const(True), main.partial("a", main["x"]), main.partial("b", main["x"])))
    for name, kind in (("a", "Neg"), ("b", "NoSuchPrimitive")):
        graph = file.graph(name, X)
        graph.gives(graph.prim(kind, graph["x"], types=[F]))
    assert kinds(import_model(file.save(tmp_path / "model.mindir"))) == ["Neg", "Identity"]


def test_a_way_that_raises_is_left_out(tmp_path: Path) -> None:
    """if n < 0: raise ValueError(...); return x * 2: what cannot be converted on that way does not matter."""
    file = File()
    main = file.graph("main", X, N)
    below = main.prim("Less", main["n"], main.const(np.int32(0)), types=[("bool", [])])
    bad, good = main.partial("bad", main["n"]), main.partial("good", main["x"])
    found = main.switch(below, bad, good)
    main.gives(main.prim("Add", found, found, types=[F]))
    graph = file.graph("bad", N)
    text = graph.prim("StringFormat", graph["n"], types=[S])
    graph.gives(graph.prim("raise", graph.const("ValueError"), text, graph.const(None), types=[F]))
    graph = file.graph("good", X)
    graph.gives(graph.prim("Mul", graph["x"], graph.const(np.float32(2)), types=[F]))
    x = np.array([1, 2, 3], np.float32)
    (out,) = run(file, tmp_path, x=x, n=np.int32(1))
    assert np.array_equal(out, x * 4)
    assert "If" not in kinds(import_model(file.save(tmp_path / "again.mindir")))


def test_a_condition_that_a_branch_gives_is_known_there(tmp_path: Path) -> None:
    """c = n < 0; d = c if c else True: d is true, so that only one way is left."""
    file = File()
    main = file.graph("main", X, N)
    below = main.prim("Less", main["n"], main.const(np.int32(0)), types=[("bool", [])])
    either = main.switch(below, main.partial("same", below), "truth")
    main.gives(main.switch(either, main.partial("one", main["x"]), "two"))
    graph = file.graph("same", ("c", "bool", []))
    graph.gives(graph["c"])
    graph = file.graph("truth")
    graph.gives(graph.const(True))
    graph = file.graph("one", X)
    graph.gives(graph.prim("Neg", graph["x"], types=[F]))
    graph = file.graph("two")
    graph.gives(graph.prim("MakeTuple", graph.const(1)))
    x = np.array([1, 2, 3], np.float32)
    (out,) = run(file, tmp_path, x=x, n=np.int32(1))
    assert np.array_equal(out, -x)


def test_a_loop_may_change_lengths(tmp_path: Path) -> None:
    """while i < n: x = concat(x, x)"""
    file = File()
    main = file.graph("main", X, N)
    main.gives(main.call("header", main["x"], main.const(np.int32(0)), main["n"], types=[("float32", [-1])]))
    header = file.graph("header", ("x", "float32", [-1]), ("i", *S), N)
    go = header.prim("Less", header["i"], header["n"], types=[("bool", [])])
    held = [header[name] for name in ("x", "i", "n")]
    header.gives(header.switch(go, header.partial("body", *held), header.partial("end", header["x"])))
    body = file.graph("body", ("x", "float32", [-1]), ("i", *S), N)
    two = body.prim("MakeTuple", body["x"], body["x"])
    joined = body.prim("Concat", two, body.const(0), types=[("float32", [-1])])
    more = body.prim("Add", body["i"], one(body), types=[S])
    body.gives(body.call("header", joined, more, body["n"], types=[("float32", [-1])]))
    end = file.graph("end", ("x", "float32", [-1]))
    end.gives(end["x"])
    x = np.array([1, 2, 3], np.float32)
    for n in (0, 3):
        (found,) = run(file, tmp_path, x=x, n=np.int32(n))
        assert np.array_equal(found, np.tile(x, 2**n))


def test_recursion_and_loops_without_end_are_refused(tmp_path: Path) -> None:
    file = File()
    main = file.graph("main", X)
    main.gives(main.call("again", main["x"], types=[F]))
    again = file.graph("again", X)
    again.gives(again.prim("Neg", again.call("again", again["x"], types=[F]), types=[F]))
    with pytest.raises(ModelError, match="a graph that calls itself and uses the result"):
        import_model(file.save(tmp_path / "model.mindir"))
    file = File()
    main = file.graph("main", X)
    main.gives(main.call("again", main["x"], types=[F]))
    again = file.graph("again", X)
    again.gives(again.call("again", again.prim("Neg", again["x"], types=[F]), types=[F]))
    with pytest.raises(ModelError, match="a loop that never ends"):
        import_model(file.save(tmp_path / "model.mindir"))


def test_programs_that_grow_without_bound_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each graph calls the next one twice: 2**40 operations in a small file."""
    monkeypatch.setattr(trace, "MOST_NODES", 2000)
    file = File()
    main = file.graph("main", X)
    main.gives(main.call("g_0", main["x"], types=[F]))
    for k in range(40):
        graph = file.graph(f"g_{k}", X)
        parts = [graph.call(f"g_{k + 1}", graph["x"], types=[F]) for _ in range(2)]
        graph.gives(graph.prim("Add", *parts, types=[F]))
    end = file.graph("g_40", X)
    end.gives(end.prim("Neg", end["x"], types=[F]))
    with pytest.raises(ModelError, match=r"more than \d+ operations"):
        import_model(file.save(tmp_path / "model.mindir"))
