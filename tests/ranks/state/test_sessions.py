"""Sessions of a model in this process, against plain ONNX Runtime whose state is carried by hand."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ranks import Model, ModelType
from ranks.errors import ModelError, ShardrunError
from ranks.run import executor
from ranks.run.rank_model import RankModel
from ranks.run.steps import runner, sequences
from ranks.state.rows import Batch
from ranks.state.session import Session
from sharding import slice_model
from tests.ranks import state_models, variable_models
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.ranks.state_models import FORMS, Plain
from tests.sharding import graphs

COUNTS = (5, 1, 1, 1, 3, 1, 1, 1, 2, 1)


@pytest.fixture(scope="module", params=list(FORMS))
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def path(form: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(form) / "model.onnx"
    FORMS[form](path)
    return path


@pytest.fixture(scope="module")
def model(path: Path) -> RankModel:
    return executor.load(path, threads=1)


def first(form: str) -> str:
    return "input" if form == "streaming" else "input_ids"


def close(found: dict[str, Any], want: np.ndarray[Any, Any]) -> bool:
    (array,) = found.values()  # no state comes out
    most = 1e-5 * max(1, np.abs(want).max(initial=0))
    return array.shape == want.shape and bool(np.abs(array - want).max(initial=0) <= most)


@pytest.mark.parametrize("batch", [1, 3])
def test_steps_equal_those_of_the_whole_model(model: RankModel, path: Path, form: str, batch: int) -> None:
    plain = Plain(path, batch)
    # GroupQueryAttention takes several new positions of several sequences in the first step only.
    counts = (5, *[1] * 6) if form == "buffered" and batch > 1 else COUNTS
    with model.session() as session:
        for array in state_models.steps(form, counts, batch):
            assert close(session.predict({first(form): array}), plain.step(array))
    assert session.length == (0 if form == "streaming" else sum(counts))


def test_sessions_do_not_disturb_each_other(model: RankModel, path: Path, form: str) -> None:
    pairs = [(model.session(), Plain(path)) for _ in range(3)]
    fed = [state_models.steps(form, COUNTS, seed=seed) for seed in range(3)]
    for step in range(len(COUNTS)):
        for (session, plain), arrays in zip(pairs, fed, strict=True):
            assert close(session.predict({first(form): arrays[step]}), plain.step(arrays[step]))


def test_a_fork_goes_its_own_way(model: RankModel, path: Path, form: str) -> None:
    plain, other = Plain(path), Plain(path)
    arrays = state_models.steps(form, COUNTS)
    session = model.session()
    for array in arrays[:4]:
        session.predict({first(form): array})
        plain.step(array)
        other.step(array)
    fork = session.fork()
    for array, elsewhere in zip(arrays[4:], state_models.steps(form, COUNTS[4:], seed=9), strict=True):
        assert close(session.predict({first(form): array}), plain.step(array))
        assert close(fork.predict({first(form): elsewhere}), other.step(elsewhere))
    session.close()
    assert close(fork.predict({first(form): arrays[0]}), other.step(arrays[0]))


def test_rewind_forgets(model: RankModel, path: Path, form: str) -> None:
    arrays = state_models.steps(form, COUNTS)
    session, want = model.session(), []
    plain = Plain(path)
    for array in arrays:
        want.append(plain.step(array))
        session.predict({first(form): array})
    if form == "streaming":
        assert session.length == 0
        session.rewind(0)
    else:
        session.rewind(sum(COUNTS[:5]))
    back = 0 if form == "streaming" else 5
    for array, result in zip(arrays[back:], want[back:], strict=True):
        assert close(session.predict({first(form): array}), result)
    why = "each step replaces the state 'state'" if form == "streaming" else f"give 0 to {sum(COUNTS)}"
    for bad in (-1, sum(COUNTS) + 1, True, "2"):
        with pytest.raises(ShardrunError, match=f"cannot be rewound to {bad!r}.*{why}"):
            session.rewind(bad)  # type: ignore[arg-type]


def test_a_failed_step_changes_nothing(model: RankModel, path: Path, form: str) -> None:
    if form == "streaming":
        pytest.skip("frames of any value can be computed")
    plain, session = Plain(path), model.session()
    for number, array in enumerate(state_models.steps(form, COUNTS)):
        assert close(session.predict({first(form): array}), plain.step(array))
        if number % 3 == 1:
            with pytest.raises(ModelError, match=r"indices|out of"):
                session.predict({first(form): np.full_like(array, 999)})
            with pytest.raises(ShardrunError, match=r"Input 'input_ids'"):
                session.predict({first(form): array.astype(np.float32)})
            with pytest.raises(ShardrunError, match="is kept by the session"):
                session.predict(
                    {first(form): array, "past_key_values.0.key": plain.state["past_key_values.0.key"]}
                )


def test_caches_grow_in_place(tmp_path: Path) -> None:
    """A step over buffers that the operator fills moves no cache: only each doubling does."""
    state_models.buffered(tmp_path / "model.onnx")
    model = executor.load(tmp_path / "model.onnx", threads=1)
    session, places = model.session(), []
    for array in state_models.steps("buffered", [60, *[1] * 80]):
        session.predict({"input_ids": array})
        state = model.sequences._open[1]
        assert state is not None
        places.append(state.value("past_key_values.1.value").ctypes.data)
    changes = [number for number in range(1, len(places)) if places[number] != places[number - 1]]
    assert changes == [5, 69]  # at 65 and at 129 positions


def test_caches_have_room_for_what_is_expected(tmp_path: Path) -> None:
    """Who says how long a sequence will be pays for no copy of its caches until it is longer."""
    state_models.buffered(tmp_path / "model.onnx")
    model = executor.load(tmp_path / "model.onnx", threads=1)
    plain, rooms = Plain(tmp_path / "model.onnx"), []
    session = Session(model.session_host, expected=139)
    for array in state_models.steps("buffered", [60, *[1] * 80]):
        assert np.abs(session.predict({"input_ids": array})["logits"] - plain.step(array)).max() <= 1e-5
        state = model.sequences._open[session.number]
        assert state is not None
        rooms.append(state.value("past_key_values.1.value").shape[2])
    assert rooms == [139] * 80 + [256]
    session.rewind(60)
    fork = session.fork()  # which may be kept as it is
    kept = model.sequences._open[fork.number]
    assert kept is not None and kept.value("past_key_values.1.value").shape[2] == 64
    again = state_models.steps("buffered", [9])[0]
    assert np.array_equal(*(one.predict({"input_ids": again})["logits"] for one in (session, fork)))
    assert kept.value("past_key_values.1.value").shape[2] == 139


def test_the_first_step_may_bring_state(model: RankModel, path: Path, form: str) -> None:
    plain, session = Plain(path), model.session()
    arrays = state_models.steps(form, COUNTS)
    plain.step(arrays[0])
    given = {first(form): arrays[1], **plain.state}
    for array in (given, {first(form): arrays[2]}):
        assert close(session.predict(array), plain.step(array[first(form)]))
    assert session.length == (0 if form == "streaming" else sum(COUNTS[:3]))


def test_masks_may_be_given(tmp_path: Path) -> None:
    """Padding on the left, as batches of prompts have it."""
    state_models.joined(tmp_path / "model.onnx")
    session = executor.load(tmp_path / "model.onnx", threads=1).session()
    alone = Plain(tmp_path / "model.onnx")
    ids = np.array([[0, 0, 7, 8, 9]])
    mask, places = np.array([[0, 0, 1, 1, 1]]), np.array([[0, 0, 0, 1, 2]])
    plain = alone.session.run(
        ["logits"], {"input_ids": ids, "attention_mask": mask, "position_ids": places, **alone.state}
    )[0]
    found = session.predict({"input_ids": ids, "attention_mask": mask, "position_ids": places})["logits"]
    assert np.abs(found - plain).max() <= 1e-5
    more = session.predict({"input_ids": ids})["logits"]
    assert more.shape == (1, 5, state_models.VOCABULARY)


def test_a_model_without_state_says_so(tmp_path: Path) -> None:
    graphs.save(tmp_path / "neg.onnx", "g (float[n] x) => (float[n] y) { y = Neg(x) }", {})
    with pytest.raises(ShardrunError, match=r"neg\.onnx has no state .* --state IN=OUT"):
        executor.load(tmp_path / "neg.onnx").session()


def test_closed_sessions_are_freed(model: RankModel, form: str) -> None:
    before = len(model.sequences._open)
    session, lost = model.session(), model.session()
    array = state_models.steps(form, [2])[0]
    session.predict({first(form): array})
    session.close()
    session.close()
    with pytest.raises(ShardrunError, match="This session is closed"):
        session.predict({first(form): array})
    del lost
    gc.collect()
    model.session().close()
    assert len(model.sequences._open) <= before


def test_of_a_lite_model(path: Path, form: str) -> None:
    model, plain = Model(), Plain(path)
    with pytest.raises(RuntimeError, match="session failed! Error is the model is not built"):
        model.session()
    model.build_from_file(str(path), ModelType.ONNX)
    session = model.session()
    for array in state_models.steps(form, COUNTS[:4]):
        assert close(session.predict({first(form): array}), plain.step(array))


@pytest.mark.parametrize("form", ["buffered", "joined"], scope="module")
def test_sequences_of_different_lengths_in_one_batch(model: RankModel, path: Path, form: str) -> None:
    """Rows join, leave and go on alone; each gets the answers that it gets alone."""
    lengths, plains, sessions = (7, 2, 5), [], []
    for number, count in enumerate(lengths):
        ids = state_models.steps(form, [count], seed=number)[0]
        plains.append(Plain(path))
        sessions.append(model.session())
        plains[-1].step(ids)
        sessions[-1].predict({"input_ids": ids})
    batch = Batch(model.session_host, sessions[:2])
    rows = [0, 1]
    random = np.random.default_rng(1)

    def step() -> None:
        ids = random.integers(0, state_models.VOCABULARY, len(rows))
        found = batch.step(ids)["logits"]
        assert found.shape == (len(rows), 1, state_models.VOCABULARY)
        for place, row in enumerate(rows):
            want = plains[row].step(ids[place : place + 1].reshape(1, 1))
            assert np.abs(found[place] - want[0]).max() <= 1e-5 * max(1, np.abs(want).max())

    for _ in range(4):
        step()
    batch.join(sessions[2:])
    rows.append(2)
    for _ in range(3):
        step()
    alone = batch.session(1)
    batch.keep([2, 0])
    rows = [2, 0]
    for _ in range(3):
        step()
    ids = np.array([[3, 4]])
    assert close(alone.predict({"input_ids": ids[:, :1]}), plains[1].step(ids[:, :1]))
    batch.close()
    assert batch.lengths == []


@pytest.mark.parametrize("form", ["buffered", "joined"], scope="module")
def test_a_batch_that_memory_cannot_hold_is_told_by_its_steps(
    model: RankModel, path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And by those of its copies; the sessions that it was made of go on."""

    def full(*_: object) -> None:
        raise MemoryError

    plain, session, ids = Plain(path), model.session(), np.array([[3, 4]])
    assert close(session.predict({"input_ids": ids}), plain.step(ids))
    with monkeypatch.context() as patch:
        patch.setattr(sequences, "merged", full)
        batch = Batch(model.session_host, [session])
    copy = batch.session(0)
    lost = "The batch could not be made: there is no memory left"
    with pytest.raises(ShardrunError, match=lost):
        batch.step(np.array([1]))
    for one in (copy, copy.fork()):
        with pytest.raises(ShardrunError, match=lost):
            one.predict({"input_ids": ids})
    batch.close()
    assert close(session.predict({"input_ids": ids}), plain.step(ids))


@pytest.mark.parametrize("change", ["rewind", "fork"])
def test_a_change_that_fails_is_told_by_the_next_step(
    model: RankModel, path: Path, form: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Of the session that it was meant for, and of no other."""

    def fails(*_: object, **__: object) -> None:
        raise MemoryError if change == "fork" else ValueError("odd")

    plain, arrays = Plain(path), state_models.steps(form, COUNTS)
    session, other = model.session(), model.session()
    for one in (session, other):
        one.predict({first(form): arrays[0]})
    plain.step(arrays[0])
    with monkeypatch.context() as patch:
        patch.setattr(sequences.Sequences, change, fails)
        broken = session.fork() if change == "fork" else session
        if change == "rewind":
            session.rewind(session.length)
    lost = "could not be copied: there is no memory left" if change == "fork" else "rewound: ValueError: odd"
    for one in (broken, broken.fork()):
        with pytest.raises(ShardrunError, match=lost):
            one.predict({first(form): arrays[1]})
    assert close(other.predict({first(form): arrays[1]}), plain.step(arrays[1]))
    broken.close()


@pytest.mark.parametrize("seen", ["past_key_values.0.key", "present.0.key"])
@pytest.mark.parametrize("by_branch", [False, True])
def test_a_cache_that_the_model_measures_has_the_length_of_what_was_read(
    seen: str, by_branch: bool, tmp_path: Path
) -> None:
    import onnx

    path = tmp_path / "model.onnx"
    state_models.buffered(path)
    model = onnx.load(path)
    graph = model.graph
    graph.node[-1].output[0] = "scores"
    last = "long"
    measured = f'length = Shape<start = 2, end = 3>("{seen}") long = Cast<to = 1>(length)'
    if by_branch:
        branch = f"b () => (float[1] long) {{ {measured} }}"
        last = "chosen"
        measured = f"""
        count = ReduceSum<keepdims = 0>(attention_mask)
        any = Cast<to = 9>(count)
        chosen = If (any) <then_branch = {branch}, else_branch = {branch}>"""
    more = onnx.parser.parse_graph(f"g () => () {{ {measured} logits = Add(scores, {last}) }}")
    graph.node.extend(more.node)
    onnx.save(model, path)
    plain = Plain(path, 1)
    with executor.load(path, threads=1).session() as session:
        for array in state_models.steps("buffered", COUNTS[:6]):
            assert close(session.predict({"input_ids": array}), plain.step(array))


def test_a_mask_that_keeps_its_width_and_then_changes_it(tmp_path: Path) -> None:
    """What was learned of shapes does not hold for a step that is given others."""
    import onnx

    text = """
    <ir_version: 10, opset_import: ["" : 18]>
    g (int64[b, n] input_ids, int64[b, m] attention_mask, float[b, 1] state)
      => (float[b, 1] y, float[b, 1] stateN) <int64[1] last = {1}> {
      a = ReduceSum(input_ids, last)
      c = ReduceSum(attention_mask, last)
      d = Add(a, c)
      e = Cast<to = 1>(d)
      stateN = Add(state, e)
      y = Identity(stateN)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    session = executor.load(tmp_path / "model.onnx", threads=1).session()
    total = 0
    for width in (4, 4, 4, 4, 6, 6, 4, 3):
        mask = np.full((1, width), 2)
        total += 5 + 2 * width
        found = session.predict({"input_ids": np.array([[5]]), "attention_mask": mask})["y"]
        assert found.tolist() == [[total]]


@pytest.mark.parametrize("size", [2, 3])
def test_state_that_ranks_gather_is_gathered_in_each_step(size: int, tmp_path: Path) -> None:
    """What is exchanged of a state that lies elsewhere with each step is what the next segment reads."""
    text = """g (float[b, 5] x, float[b, 12] recurrent_in) => (float[b, 12] y, float[b, 12] recurrent_out) {
      a = MatMul(x, w1) c = MatMul(recurrent_in, w2) d = Add(a, c) e = Tanh(d) f = Mul(recurrent_in, half)
      recurrent_out = Add(e, f) y = MatMul(recurrent_out, w3) }"""
    weights = {"w1": graphs.array(5, 12), "w2": graphs.array(12, 12), "w3": graphs.array(12, 12)}
    whole = tmp_path / "whole.onnx"
    graphs.save(whole, text, {**weights, "half": np.full(1, 0.5, np.float32)})
    manifest = slice_model(whole, size, tmp_path / "slices")
    assert [item.op for item in manifest.collectives].count("AllGather") > 0
    plain, state = graphs.session(whole), np.zeros((2, 12), np.float32)
    given, wanted = [graphs.array(2, 5, seed=seed) for seed in range(6)], []
    for x in given:
        y, state = plain.run(None, {"x": x, "recurrent_in": state})
        wanted.append(y)

    def work(communicator: FakeCommunicator) -> None:
        rank = tmp_path / "slices" / f"rank_{communicator.rank}.onnx"
        with executor.load(rank, communicator=communicator, threads=1).session() as session:
            for x, y in zip(given, wanted, strict=True):
                assert np.allclose(session.predict({"x": x})["y"], y, atol=1e-5)

    on_ranks(size, work)


def test_an_interrupted_step_ends_its_session_alone(
    model: RankModel, path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the ranks finished it nobody knows: to go on would be to guess how far the state is."""
    plain, arrays = Plain(path), state_models.steps(form, COUNTS)
    session, other = model.session(), model.session()
    for one in (session, other):
        one.predict({first(form): arrays[0]})
    plain.step(arrays[0])

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model.session_host, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.predict({first(form): arrays[1]})
    for use in (lambda: session.predict({first(form): arrays[1]}), session.fork, lambda: session.rewind(0)):
        with pytest.raises(ShardrunError, match="A step was interrupted"):
            use()
    assert close(other.predict({first(form): arrays[1]}), plain.step(arrays[1]))
    if form == "streaming":
        return
    batch = Batch(model.session_host, [other])
    with monkeypatch.context() as patch:
        patch.setattr(model.session_host, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            batch.step(np.array([3]))
    with pytest.raises(ShardrunError, match="A step was interrupted"):
        batch.session(0)
    batch.join([other])
    ids = np.array([4])
    assert close(batch.step(ids), plain.step(ids.reshape(1, 1)))


def test_shapes_that_were_seen_long_ago_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a text of every length would cost memory for ever. Steps are right all the same."""
    monkeypatch.setattr(runner, "MAX_SEEN", 3)
    state_models.FORMS["joined"](tmp_path / "m.onnx")
    model = executor.load(tmp_path / "m.onnx", threads=1)
    for length in (*range(1, 7), 1, 2, 1, 2):
        plain = Plain(tmp_path / "m.onnx", 1)
        with model.session() as session:
            for array in state_models.steps("joined", (length, 1), 1):
                assert close(session.predict({"input_ids": array}), plain.step(array))


def test_a_plain_model_with_state_and_a_variable_weight(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    state_models.FORMS["joined"](path)
    plain = onnx.load(path)
    (last,) = (node for node in plain.graph.node if "logits" in node.output)
    (weight,) = (tensor for tensor in plain.graph.initializer if tensor.name == last.input[1])
    values = {weight.name: -2 * numpy_helper.to_array(weight)}
    after = variable_models.replaced(path, values, tmp_path / "after.onnx")
    model = executor.load(path, threads=1, variable_weights=[weight.name])
    for file in (path, after):
        with model.session() as session:
            one = Plain(file)
            for array in state_models.steps("joined", (3, 1, 1, 1), 1):
                assert close(session.predict({"input_ids": array}), one.step(array))
        model.update_weights(values)
