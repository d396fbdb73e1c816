"""Sequences whose state stays on the ranks: alone and in one batch, against plain ONNX Runtime."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

from launcher import Group, start
from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.generation.engine import Engine
from launcher.generation.generate import generate
from launcher.generation.resident import ResidentDecoder, ResidentSequence, decoder_of
from launcher.generation.stateful import Program, StatefulDecoder, program_of
from tests.ranks.state_models import FORMS, HIDDEN, VOCABULARY, Plain

RANDOM = np.random.default_rng(0)
PROMPTS = [RANDOM.integers(0, VOCABULARY, count) for count in (5, 9, 2, 7)]


@pytest.fixture(scope="module", params=["buffered", "joined"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("resident") / "model.onnx"
    FORMS[request.param](made)
    return made


@pytest.fixture(scope="module")
def group(path: Path) -> Iterator[Group]:
    with start(path, ranks=2, launcher="local", threads=1) as group:
        yield group


@pytest.fixture
def decoder(group: Group) -> ResidentDecoder:
    made = decoder_of(program_of(group))
    assert isinstance(made, ResidentDecoder) and made.batches and made.rewinds
    return made


class Pair:
    """A sequence, and the whole model that reads the same."""

    def __init__(self, decoder: ResidentDecoder, path: Path, ids: Any = ()) -> None:
        self.path, self.ids = path, list(map(int, ids))
        self.sequence: Any = decoder.sequence()
        if self.ids:
            self.check(self.sequence.step(np.array(self.ids)))

    def want(self) -> Any:
        """The whole model's logits for all that was read."""
        return Plain(self.path).step(np.array([self.ids]))[0]

    def check(self, logits: Any) -> None:
        want = self.want()[-1]
        assert logits.shape == (1, VOCABULARY)
        assert np.abs(logits[0] - want).max() <= 1e-4 * max(1, np.abs(want).max())

    def step(self, *ids: int) -> None:
        self.ids += ids
        self.check(self.sequence.step(np.array(ids)))

    def rewind(self, length: int) -> None:
        self.sequence.rewind(length)
        del self.ids[length:]

    def fork(self) -> Pair:
        twin = Pair.__new__(Pair)
        twin.path, twin.ids, twin.sequence = self.path, list(self.ids), self.sequence.fork()
        return twin


def together(decoder: ResidentDecoder, pairs: list[Pair], first: int = 3) -> None:
    ids = (np.arange(len(pairs)) * 7 + first) % VOCABULARY
    found = decoder.step_many([pair.sequence for pair in pairs], ids)
    for pair, token, logits in zip(pairs, ids.tolist(), found, strict=True):
        pair.ids.append(token)
        pair.check(logits)
        assert pair.sequence.length == len(pair.ids)


def test_rows_fork_rewind_leave_and_close(decoder: ResidentDecoder, path: Path) -> None:
    one, two, three, four = pairs = [Pair(decoder, path, ids) for ids in PROMPTS]
    for count in (2, 4, 3, 4):
        together(decoder, pairs[:count])
    # Rows that go on alone, and come back to the same places.
    two.step(8)
    together(decoder, pairs)
    three.rewind(3)
    together(decoder, pairs)
    one.rewind(0)
    one.step(4, 5)
    together(decoder, [four, one, two, three])
    twin = one.fork()
    together(decoder, [twin, one, two])
    one.sequence.close()
    one.sequence.close()
    together(decoder, [two, twin, four])
    twin.step(1, 2, 3)
    two.sequence.close()
    together(decoder, [twin, four, three])
    with pytest.raises(ShardrunError, match="This sequence is closed"):
        one.sequence.step(np.array([1]))
    with pytest.raises(ConfigError, match="cannot be rewound to 99"):
        four.rewind(99)
    together(decoder, [four, three])


def test_the_last_row_that_goes_frees_the_batch(
    decoder: ResidentDecoder, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_now: set[int] = set()
    real = type(decoder.host).change

    def change(self: Any, change: str, number: int, **more: Any) -> None:
        open_now.add(more.get("new", number))
        if change == "close":
            open_now.discard(number)
        real(self, change, number, **more)

    monkeypatch.setattr(type(decoder.host), "change", change)
    pairs = [Pair(decoder, path, ids) for ids in PROMPTS[:3]]
    together(decoder, pairs)
    assert len(open_now) == 1  # the batch alone: its rows are no sessions any more
    pairs[0].step(1)
    pairs[1].step(1)
    pairs[2].step(1)
    assert len(open_now) == 3  # and now the batch is gone
    together(decoder, pairs[:2])
    for pair in pairs:
        pair.sequence.close()
    assert open_now == set()


def test_every_position_and_a_step_that_fails(decoder: ResidentDecoder, path: Path) -> None:
    pair = Pair(decoder, path)
    with pytest.raises(ShardrunError):
        pair.sequence.step(np.array([VOCABULARY + 900]))
    pair.step(3, 4)
    with pytest.raises(ShardrunError):
        pair.sequence.step(np.array([1, VOCABULARY + 900]))
    assert pair.sequence.length == 2
    pair.ids += [5, 6, 7]
    found, want = pair.sequence.step(np.array([5, 6, 7]), every=True), pair.want()[2:]
    assert found.shape == want.shape and np.abs(found - want).max() <= 1e-4 * np.abs(want).max()
    pair.step(9)


def test_a_failed_step_of_a_batch_leaves_its_rows(decoder: ResidentDecoder, path: Path) -> None:
    pairs = [Pair(decoder, path, ids) for ids in PROMPTS[:3]]
    together(decoder, pairs)
    with pytest.raises(ShardrunError):
        decoder.step_many([pair.sequence for pair in pairs], np.array([1, VOCABULARY + 900, 2]))
    together(decoder, pairs)


def test_threads_share_one_decoder(decoder: ResidentDecoder, path: Path) -> None:
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            pairs = [Pair(decoder, path, ids[seed % 2 :]) for ids in PROMPTS[seed : seed + 2]]
            for first in range(4):
                together(decoder, pairs, first + seed)
            pairs[0].rewind(2)
            together(decoder, pairs)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_logits_of_the_last_position_alone(
    decoder: ResidentDecoder, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that leaves out the others: a step for ``every`` position counts as not made, and is made
    token by token."""
    real = type(decoder.host).step

    def step(self: Any, number: int, tensors: dict[str, Any], ask: Any = None) -> dict[str, Any]:
        assert ask is None
        return {name: array[:, -1:] for name, array in real(self, number, tensors).items()}

    monkeypatch.setattr(type(decoder.host), "step", step)
    pair = Pair(decoder, path)
    for ids in ([3, 4, 5], [6, 7], [8]):
        pair.ids += ids
        found, want = pair.sequence.step(np.array(ids), every=True), pair.want()[-len(ids) :]
        assert found.shape == want.shape and np.abs(found - want).max() <= 1e-4 * np.abs(want).max()


def test_state_that_a_first_graph_made_is_where_a_session_begins(group: Group, path: Path) -> None:
    """Two graphs, as of optimum: the first one takes no state, and is plain ONNX Runtime here."""
    whole = Plain(path)

    def run(feeds: Any) -> dict[str, Any]:
        full = {**whole.state, **feeds}
        outputs = [value.name for value in whole.session.get_outputs()]
        return dict(zip(outputs, whole.session.run(None, full), strict=True))

    later = program_of(group)
    first = Program(run, [spec for spec in later.inputs if "past" not in spec.name], later.outputs)
    decoder = decoder_of(first, later)
    assert isinstance(decoder, ResidentDecoder)
    one, two = (Pair(decoder, path, ids) for ids in PROMPTS[:2])
    with pytest.raises(ShardrunError):
        one.sequence.step(np.array([VOCABULARY + 900]))  # the state is not lost with the step
    twin = one.fork()
    one.step(7)
    one.rewind(len(PROMPTS[0]) - 2)
    one.step(1, 2)
    together(decoder, [one, two])  # `two` has no session yet: one after another
    together(decoder, [one, two])
    twin.step(8)
    twin.rewind(2)
    together(decoder, [two, twin, one])
    one.rewind(0)
    one.step(11, 12)
    together(decoder, [two, twin, one])


def test_what_keeps_no_state_is_no_resident_decoder(group: Group) -> None:
    program = program_of(group)
    plain = decoder_of(Program(program.run, program.inputs, program.outputs))
    assert type(plain) is StatefulDecoder
    resident = decoder_of(program)
    ids = np.array([1, 2, 3])
    found = [decoder.sequence().step(ids) for decoder in (plain, resident)]
    assert np.abs(found[0] - found[1]).max() <= 1e-5 * np.abs(found[0]).max()
    assert isinstance(resident.sequence(), ResidentSequence)


def test_a_graph_that_places_all_rows_alike_makes_no_batch(tmp_path: Path) -> None:
    """Positions by the length of the mask: right for one sequence, wrong for a shorter one beside it."""
    path = tmp_path / "model.onnx"
    FORMS["buffered"](path)
    model = onnx.load(path)
    graph = model.graph
    embedding = next(node for node in graph.node if "input_ids" in node.input)
    after, embedding.output[0] = embedding.output[0], "embedded"
    table = np.random.default_rng(8).standard_normal((256, HIDDEN)).astype(np.float32)
    for name, array in {"table": table, "zero": np.int64(0), "one": np.int64(1), "axis": np.int64(1)}.items():
        graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    made = [
        onnx.helper.make_node("Shape", ["attention_mask"], ["mask_shape"]),
        onnx.helper.make_node("Gather", ["mask_shape", "axis"], ["reach"]),
        onnx.helper.make_node("Shape", ["input_ids"], ["ids_shape"]),
        onnx.helper.make_node("Gather", ["ids_shape", "axis"], ["count"]),
        onnx.helper.make_node("Sub", ["reach", "count"], ["begin"]),
        onnx.helper.make_node("Range", ["begin", "reach", "one"], ["places"]),
        onnx.helper.make_node("Gather", ["table", "places"], ["placed"]),
        onnx.helper.make_node("Add", ["embedded", "placed"], [after]),
    ]
    where = list(graph.node).index(embedding) + 1
    nodes = [*graph.node[:where], *made, *graph.node[where:]]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, path)
    with start(path, ranks=2, launcher="local", threads=1) as group:
        decoder = decoder_of(program_of(group))
        assert isinstance(decoder, ResidentDecoder) and decoder.batches
        same = [Pair(decoder, path, ids[:2]) for ids in PROMPTS[:2]]
        together(decoder, same)
        pairs = [*same, *(Pair(decoder, path, ids) for ids in PROMPTS[:2])]
        for _ in range(3):
            together(decoder, pairs)
        assert not decoder.batches
        pairs[0].rewind(2)
        together(decoder, pairs[:2])


@pytest.mark.parametrize("kind", [RankFailedError, LaunchError])
def test_ranks_that_are_lost_are_not_taken_for_ranks_without_state(kind: type[ShardrunError]) -> None:
    class Lost:
        inputs = outputs = optional_inputs = ()
        predict = None

        @property
        def session_host(self) -> object:
            raise kind("they are lost")

    with pytest.raises(kind, match="they are lost"):
        program_of(cast(Any, Lost()))


@pytest.mark.parametrize(("most", "expected"), [(3, 8), (100, 10)])
def test_ranks_hear_how_long_a_text_may_be(
    decoder: ResidentDecoder, most: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most twice the prompt, as a buffer that doubles has: few texts are as long as they may be."""
    opened, change = [], decoder.host.change

    def noted(kind: str, number: int, **more: Any) -> None:
        if kind == "open":
            opened.append(more["length"])
        change(kind, number, **more)

    monkeypatch.setattr(decoder.host, "change", noted)
    prompt = [3, 1, 4, 1, 5]
    alone = generate(decoder, prompt, max_new_tokens=most).finish()[0].ids
    with Engine(decoder) as engine:
        assert engine.submit(prompt, max_new_tokens=most).finish()[0].ids == alone
    assert opened == [expected, expected]


def test_new_ranks_are_begun_with_once(decoder: ResidentDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that find other ranks at the same time do not take each other's batch away."""
    host, batch = decoder.host, cast(Any, object())

    class Turn:
        """While it is waited for, another thread begins with the new ranks."""

        def __enter__(self) -> None:
            decoder.host, decoder._batch = host, batch

        def __exit__(self, *_: object) -> None:
            pass

    decoder.host = cast(Any, None)
    monkeypatch.setattr(decoder, "turn", Turn())
    decoder.sequence()
    assert decoder.host is host and decoder._batch is batch
    decoder._batch = None
