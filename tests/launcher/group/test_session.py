"""Sessions of a group: state that stays on its ranks, against plain ONNX Runtime on the whole model."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from launcher import generate, start
from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.generation.sample import Token
from launcher.group.requests import PredictError
from ranks.state.rows import Batch
from sharding.demands.options import SliceOptions
from sharding.slices.manifest import read_manifest
from sharding.slices.mesh import parse_mesh
from tests.end_to_end.processes import run_clean
from tests.ranks import state_models
from tests.ranks.state_models import FORMS, Plain
from tests.sharding import graphs

ROOT = Path(__file__).parents[3]
COUNTS = (6, 1, 1, 1, 3, 1, 1)
WAYS = {
    "buffered": ("buffered", 2, "local", None),
    "joined": ("joined", 2, "local", None),
    "joined-4": ("joined", 4, "local", None),
    "streaming": ("streaming", 2, "local", None),
    "mpirun": ("joined", 2, "mpirun", None),
    "stages": ("buffered", 2, "local", "pipeline=2"),
    "both": ("joined", 4, "local", "tensor=2,pipeline=2"),
    "copies": ("buffered", 2, "local", "data=2"),
    "copies-parts": ("joined", 4, "local", "data=2,tensor=2"),
    "copies-streaming": ("streaming", 2, "local", "data=2"),
}
"""The form of the model, ranks, what starts them, and the mesh."""


class Way:
    """One group, and what it runs."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.form, self.ranks, launcher, mesh = WAYS[name]
        self.path = folder / "model.onnx"
        FORMS[self.form](self.path)
        options = SliceOptions(mesh=parse_mesh(mesh)) if mesh else None
        self.group = start(
            self.path, ranks=self.ranks, launcher=launcher, threads=1, options=options, allow_replicated=True
        )
        self.first = "input" if self.form == "streaming" else "input_ids"

    def close(self, found: dict[str, np.ndarray], want: np.ndarray) -> bool:  # type: ignore[type-arg]
        """Whether an answer is that of the whole model, and nothing else."""
        (array,) = found.values()
        most = 1e-5 * max(1, np.abs(want).max(initial=0))
        return array.shape == want.shape and bool(np.abs(array - want).max(initial=0) <= most)


@pytest.fixture(scope="module", params=list(WAYS))
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    made = Way(request.param, tmp_path_factory.mktemp("way"))
    with made.group:
        yield made


def test_steps_forks_and_rewinds_equal_the_whole_model(way: Way) -> None:
    plain, arrays = Plain(way.path), state_models.steps(way.form, COUNTS)
    want = [plain.step(array) for array in arrays]
    with way.group.session() as session:
        for array, result in zip(arrays[:4], want[:4], strict=True):
            assert way.close(session.predict({way.first: array}), result)
        fork = session.fork()
        for one in (session, fork):
            for array, result in zip(arrays[4:], want[4:], strict=True):
                assert way.close(one.predict({way.first: array}), result)
        back = 0 if way.form == "streaming" else 3
        session.rewind(sum(COUNTS[:back]) if back else 0)
        for array, result in zip(arrays[back:], want[back:], strict=True):
            assert way.close(session.predict({way.first: array}), result)


def test_whole_state_goes_in_and_out_without_a_session(way: Way) -> None:
    plain = Plain(way.path)
    for array in state_models.steps(way.form, COUNTS[:3]):
        feeds = {way.first: array, **plain.state}
        past = plain.length
        plain_answer = plain.step(array)
        if "attention_mask" in plain.names:
            feeds["attention_mask"] = np.ones((1, plain.length), np.int64)
        if "position_ids" in plain.names:
            feeds["position_ids"] = np.arange(past, plain.length)[None]
        found = way.group.predict(feeds)
        assert np.abs(next(iter(found.values())) - plain_answer).max() <= 1e-5 * max(
            1, np.abs(plain_answer).max()
        )
        for output, name in plain.pairs.items():
            assert found[output].shape == plain.state[name].shape
            assert np.abs(found[output] - plain.state[name]).max() <= 1e-5


def test_a_failed_step_leaves_all_as_it_was(way: Way) -> None:
    if way.form == "streaming":
        pytest.skip("frames of any value can be computed")
    plain, session = Plain(way.path), way.group.session()
    for array in state_models.steps(way.form, COUNTS):
        assert way.close(session.predict({way.first: array}), plain.step(array))
        with pytest.raises(PredictError, match=r"indices|out of"):
            session.predict({way.first: np.full_like(array, 999)})


def test_threads_and_sessions_do_not_disturb_each_other(way: Way) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        plain, session = Plain(way.path), way.group.session()
        for array in state_models.steps(way.form, COUNTS, seed=seed):
            if not way.close(session.predict({way.first: array}), plain.step(array)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_rows_of_a_batch_join_and_leave(way: Way) -> None:
    if way.form == "streaming":
        with pytest.raises(ShardrunError, match="cannot be read on in one batch"):
            Batch(way.group.session_host)
        return
    plains, sessions = [Plain(way.path) for _ in range(3)], [way.group.session() for _ in range(3)]
    for number, (plain, session) in enumerate(zip(plains, sessions, strict=True)):
        ids = state_models.steps(way.form, [3 + 2 * number], seed=number)[0]
        plain.step(ids)
        session.predict({"input_ids": ids})
    batch = Batch(way.group.session_host, sessions[:2])
    for rows in ([0, 1], [0, 1], [0, 1, 2], [0, 1, 2], [2, 0], [2, 0]):
        if len(rows) > len(batch.lengths):
            batch.join(sessions[2:])
        elif len(rows) < len(batch.lengths):
            batch.keep(rows)
        ids = np.arange(len(rows)) + 5
        found = batch.step(ids)["logits"]
        for place, row in enumerate(rows):
            want = plains[row].step(ids[place : place + 1].reshape(1, 1))
            assert np.abs(found[place] - want[0]).max() <= 1e-5 * max(1, np.abs(want).max())


def test_state_lies_in_parts(tmp_path: Path) -> None:
    """Half of each cache on each of two ranks, and nothing of it in a collective."""
    from sharding import slice_model

    state_models.joined(tmp_path / "model.onnx")
    slice_model(tmp_path / "model.onnx", 2, tmp_path / "slices")
    manifest = read_manifest(tmp_path / "slices")
    assert {pair.placement for pair in manifest.state} == {"split:1"}
    assert [item.op for item in manifest.collectives].count("AllReduce") >= 2 * state_models.LAYERS
    assert not any("present" in item.tensor for item in manifest.collectives)
    model = onnx.load(tmp_path / "slices" / "rank_0.onnx", load_external_data=False)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    assert shapes["past_key_values.0.key"][1] == state_models.GROUPS // 2


def test_a_killed_rank_ends_the_session_with_its_name(tmp_path: Path) -> None:
    state_models.joined(tmp_path / "model.onnx")
    with start(tmp_path / "model.onnx", ranks=2, launcher="local", threads=1) as group:
        session = group.session()
        ids = state_models.steps("joined", [4])[0]
        session.predict({"input_ids": ids})
        os.kill(group.stats[1].pid, signal.SIGKILL)
        with pytest.raises(RankFailedError, match=r"rank 1 on host .* (SIGKILL|killed)"):
            for _ in range(1000):
                session.predict({"input_ids": ids[:, :1]})
        session.close()
    with pytest.raises(LaunchError, match="This group is closed"):
        group.session()


def test_rows_of_a_session(way: Way) -> None:
    """Of a batch of one length, which copies of the model share out; also where one row is wrong."""
    for batch in (3, 2):
        plain, session = Plain(way.path, batch), way.group.session()
        counts = (5, 1, 1, 1, 1)  # GroupQueryAttention takes several new positions in the first step only
        for array in state_models.steps(way.form, counts, batch):
            assert way.close(session.predict({way.first: array}), plain.step(array))
            if way.form == "streaming":
                continue
            wrong = array.copy()
            wrong[-1, -1] = 999
            # A copy without a wrong row may be the first to refuse: several new positions.
            several = way.name.startswith("copies") and array.shape[1] > 1
            why = r"indices|out of|batch_size must be 1" if several else r"indices|out of"
            with pytest.raises(PredictError, match=why):
                session.predict({way.first: wrong})
        if way.name == "copies-streaming":
            with pytest.raises(PredictError, match=f"has {batch} rows, but the step gives {batch - 1}"):
                session.predict({way.first: array[1:]})
        fork = session.fork()
        last = state_models.steps(way.form, [1], batch, seed=5)[0]
        want = plain.step(last)
        for one in (session, fork):
            assert way.close(one.predict({way.first: last}), want)


def test_a_step_that_a_later_stage_cannot_compute_changes_no_stage(tmp_path: Path) -> None:
    text = """
    g (float[b, 32] x, int64[b] pick, float[b, 32] state) => (float[b, 32] y, float[b, 32] state_out) {
      a = MatMul(x, w0)
      state_out = Add(state, a)
      c = MatMul(state_out, w1)
      d = Tanh(c)
      e = MatMul(d, w2)
      f = Gather(w3, pick)
      h = Mul(e, f)
      y = MatMul(h, w4)
    }"""
    weights = {f"w{number}": graphs.array(32, 32, seed=number) * 0.3 for number in range(5)}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    plain = graphs.session(path)
    state = np.zeros((1, 32), np.float32)
    options = SliceOptions(mesh=parse_mesh("pipeline=2"))
    with start(path, ranks=2, launcher="local", threads=1, options=options) as group:
        session = group.session()
        for n in range(3):
            feeds = {"x": graphs.array(1, 32, seed=n), "pick": np.array([3])}
            want, state = plain.run(None, {**feeds, "state": state})
            assert np.abs(session.predict(feeds)["y"] - want).max() <= 1e-4
            with pytest.raises(PredictError, match="indices"):
                session.predict({**feeds, "pick": np.array([99])})


@pytest.mark.parametrize("mesh", ["data=2", "pipeline=2"])
def test_a_change_that_one_rank_cannot_make_is_told_by_all(tmp_path: Path, mesh: str) -> None:
    """The state of one copy, or of one stage, which grows by one whatever the step has read."""
    text = """
    g (int64[b, n] input_ids, float[b, p, 32] past_kv) => (float[b, 32] y, float[b, m, 32] present_kv)
      <int64[1] one = {1}> {
      e = Gather(w0, input_ids)
      f = MatMul(e, w1)
      h = Tanh(f)
      a = ReduceMean<keepdims = 1>(h, one)
      present_kv = Concat<axis = 1>(past_kv, a)
      c = ReduceMean<keepdims = 0>(present_kv, one)
      d = MatMul(c, w2)
      y = MatMul(d, w3)
    }"""
    weights = {f"w{number}": graphs.array(32, 32, seed=number) * 0.3 for number in range(4)}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    plain = graphs.session(path)
    ids = np.array([[3, 7, 1]])
    want = plain.run(None, {"input_ids": ids, "past_kv": np.zeros((1, 0, 32), np.float32)})[0]
    options = SliceOptions(mesh=parse_mesh(mesh))
    with start(path, ranks=2, launcher="local", threads=1, options=options) as group:
        for _ in range(2):
            session = group.session()
            assert np.abs(session.predict({"input_ids": ids})["y"] - want).max() <= 1e-5
            session.rewind(2)
            for _ in range(2):
                with pytest.raises(PredictError, match="cannot be rewound to 2"):
                    session.predict({"input_ids": ids})


def test_the_example_of_a_streaming_model(tmp_path: Path) -> None:
    state_models.streaming(tmp_path / "model.onnx")
    frames = np.stack(state_models.steps("streaming", [1] * 5))
    np.save(tmp_path / "frames.npy", frames)
    command = [sys.executable, str(ROOT / "examples" / "streaming.py"), "model.onnx", "frames.npy"]
    done = run_clean(command, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}, timeout=100)
    assert done.returncode == 0, done.stderr
    plain = Plain(tmp_path / "model.onnx")
    found = [float(line.split()[1]) for line in done.stdout.splitlines()]
    assert np.allclose(found, [plain.step(frame).mean() for frame in frames], atol=1e-5)


def test_a_group_generates(tmp_path: Path) -> None:
    state_models.joined(tmp_path / "model.onnx")
    with start(tmp_path / "model.onnx", ranks=2, launcher="local", threads=1) as group:
        prompt, plain = [3, 17, 5], Plain(tmp_path / "model.onnx")
        want = [int(plain.step(np.array([prompt]))[0, -1].argmax())]
        while len(want) < 12:
            want.append(int(plain.step(np.array([want[-1:]]))[0, -1].argmax()))
        events = list(group.generate(prompt, max_new_tokens=12))
        assert [event.id for event in events if isinstance(event, Token)] == want
        assert generate(group, prompt, max_new_tokens=12).ids == want
        for made in (group.generate, lambda text: generate(group, text)):
            with pytest.raises(ConfigError, match="no tokenizer: give token ids"):
                made("text")
    with pytest.raises(LaunchError, match="This group is closed"):
        group.generate(prompt)
    state_models.streaming(tmp_path / "other.onnx")
    other = start(tmp_path / "other.onnx", ranks=1, launcher="local", threads=1)
    with other, pytest.raises(ConfigError, match="the model is no"):
        other.generate(prompt)


def test_sessions_that_are_opened_at_once_are_others(tmp_path: Path) -> None:
    """The first one asks the ranks what their state is: meanwhile others must not ask again."""
    state_models.streaming(tmp_path / "model.onnx")
    numbers: list[int] = []
    with start(tmp_path / "model.onnx", ranks=1, launcher="local", threads=1) as group:
        barrier = threading.Barrier(8)

        def work() -> None:
            barrier.wait()
            numbers.append(group.session().number)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(numbers) == list(range(1, 9))


def test_rows_whose_inputs_are_of_odd_lengths_stay_together(tmp_path: Path) -> None:
    """Two inputs of one symbol: rows are computed apart where they are of one length, and only then."""
    text = """
    g (float[b, s, 4] x, float[b, s] m, float[b, p, 4] past_kv) => (float[b, 4] y, float[b, q, 4] present_kv)
      <int64[2] rest = {-1, 4}, int64 zero = {0}, int64 one = {1}> {
      present_kv = Concat<axis = 1>(past_kv, x)
      f = Reshape(x, rest) l = Shape(m) N = Gather(l, zero) k = Gather(l, one) r = Range(zero, N, one)
      o = Mul(r, k) y = Gather(f, o) }"""
    path = graphs.save(tmp_path / "model.onnx", text, {})
    plain = graphs.session(path, optimized=False)
    past = {"past_kv": np.zeros((4, 0, 4), np.float32)}
    odd, even = (
        {"x": graphs.array(4, 5, 4), "m": graphs.array(4, length, seed=1)} for length in (3, 5)
    )  # fmt: skip
    with start(path, ranks=2, threads=1, options=SliceOptions(mesh=parse_mesh("data=2"))) as group:
        for feeds in (odd, even):
            session = group.session()
            np.testing.assert_array_equal(session.predict(feeds)["y"], plain.run(["y"], feeds | past)[0])
        with pytest.raises(PredictError, match="'s' has length 3 in input 'm', but 5 in input 'x'"):
            session.predict(odd)
