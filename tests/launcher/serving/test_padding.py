"""Requests of different lengths are joined where a mask says so; ONNX Runtime is the oracle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.http as triton

import launcher
from launcher.errors import ConfigError
from launcher.job.job import Job
from launcher.serving.batching import Batch, Batching, Padding
from launcher.serving.fair_queue import FairQueue
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.opening import Offer
from launcher.serving.options import ModelOptions
from launcher.serving.tensor_model import Request, TensorModel
from ranks.common.tensors import TensorSpec, checked_feeds
from tests.launcher.serving.running import Running, running
from tests.sharding import graphs


def save(path: Path, *, masked: bool = True, other: str = "") -> Path:
    """The mean of words' vectors, and these, where the mask is 1; not ``masked``: the mean of all."""
    mean = """sum = ReduceSum<keepdims = 0>(vectors, one)
      count = ReduceSum<keepdims = 1>(m, one)
      mean = Div(sum, count)"""
    if not masked:
        mean = "mean = ReduceMean<keepdims = 0>(vectors, one)"
    text = f"""words (int64[batch, length] ids, int64[batch, length] mask)
    => (float[batch, {other or "length"}, 6] vectors, float[batch, 6] mean) {{
      v = Gather(table, ids)
      m = Cast<to = 1>(mask)
      m3 = Unsqueeze(m, two)
      vectors = Mul(v, m3)
      {mean}
    }}"""
    table = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
    return graphs.save(path, text, {"table": table, "one": np.array([1]), "two": np.array([2])})


def feeds(length: int, seed: int, rows: int = 1) -> dict[str, Any]:
    ids = np.random.default_rng(seed).integers(0, 32, (rows, length))
    mask = np.ones_like(ids)
    mask[:, length - length // 4 :] = 0  # a client may have filled up its own
    return {"ids": ids, "mask": mask}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("words") / "words.onnx")


@pytest.fixture(scope="module")
def server(words: Path) -> Iterator[Running]:
    offer = Offer(
        "words", Job(model=words, ranks=2, launcher="local", threads=1),
        ModelOptions(max_batch_size=8, max_delay=0.2, pad_mask="mask"),
    )  # fmt: skip
    limits, metrics = ServeLimits(), Metrics()
    with running(offer.made(limits, metrics), limits=limits, metrics=metrics) as found:
        yield found


def test_answers_are_those_of_onnx_runtime(server: Running, words: Path) -> None:
    plain = onnxruntime.InferenceSession(words, providers=["CPUExecutionProvider"])
    asked = [feeds(2 + seed % 7, seed, 1 + seed % 2) for seed in range(24)]

    def ask(arrays: dict[str, Any]) -> Any:
        with triton.InferenceServerClient(server.address, network_timeout=60) as client:
            inputs = []
            for name, array in arrays.items():
                inputs.append(triton.InferInput(name, list(array.shape), "INT64"))
                inputs[-1].set_data_from_numpy(array)
            found = client.infer("words", inputs)
            return [found.as_numpy(name) for name in ("vectors", "mean")]

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, asked))
    for arrays, found in zip(asked, answers, strict=True):
        for own, expected in zip(found, plain.run(["vectors", "mean"], arrays), strict=True):
            assert own.shape == expected.shape
            np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)
    numbers = server.context.repository.get("words").numbers
    assert numbers.succeeded == len(asked) > numbers.runs, "no two requests were joined"


PADDING = Padding("mask", {"ids": [1], "mask": [1]})


async def filled(asked: list[Any]) -> Batch[Request]:
    """What is joined of requests that wait."""
    queue: FairQueue[Request] = FairQueue(9)
    for one in asked:
        queue.put(Request(one, 0.0, asyncio.get_running_loop().create_future()))
    batch = Batch([queue.take() or pytest.fail()], PADDING)
    await Batching(8, padding=PADDING).fill(batch, queue)
    return batch


@pytest.mark.parametrize(
    ("lengths", "joined"),
    [([8, 8, 8], [8, 8, 8]), ([8, 5, 4], [8, 5, 4]), ([8, 1, 1, 1, 1], [8, 1]), ([1, 9, 9], [1, 9, 9])],
)  # fmt: skip
def test_no_more_is_filled_up_than_there_was(lengths: list[int], joined: list[int]) -> None:
    batch = asyncio.run(filled([feeds(length, seed) for seed, length in enumerate(lengths)]))
    assert [np.shape(one.feeds["ids"])[1] for one in batch.requests] == joined
    assert batch.feeds()["mask"].shape == (len(joined), max(joined))


@pytest.mark.parametrize("name", ["ids", "mask"])
def test_requests_of_different_types_are_not_joined(name: str) -> None:
    """One of them would be computed, and answered, in the type of the other."""
    first, other, third = (feeds(5, seed) for seed in range(3))
    other[name] = other[name].astype(np.int32)
    assert len(asyncio.run(filled([first, third])).requests) == 2
    assert asyncio.run(filled([first, other, third])).requests[0].feeds is first
    assert len(asyncio.run(filled([first, other, third])).requests) == 1


@pytest.mark.parametrize("late", [False, True])
def test_who_waits_for_others_does_not_look_again_and_again(late: bool) -> None:
    """uvloop takes less than a millisecond for none: a processor was busy for as long as requests waited."""

    class Queue(FairQueue[Request]):
        looks = 0

        def take_if(self, fits: Callable[[Request], bool]) -> Request | None:
            self.looks += 1
            return super().take_if(fits)

    async def waited() -> tuple[int, int]:
        loop, queue = asyncio.get_running_loop(), Queue(9)
        first, second = (Request(feeds(5, seed), 0.0, loop.create_future()) for seed in (0, 1))
        batch = Batch([first])
        if late:
            loop.call_later(0.05, queue.put, second)
        await Batching(2 if late else 8, seconds=60 if late else 0.1).fill(batch, queue)
        return len(batch.requests), queue.looks

    joined, looks = asyncio.run(waited())
    assert joined == 1 + late and looks <= 3


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("length", [0, 5])
def test_a_request_of_which_the_mask_leaves_nothing_is_not_joined(length: int, place: int) -> None:
    """What is made of it may depend on its length, as where a softmax makes a mean of all."""
    asked = [feeds(6, 0), feeds(6, 1, 2)]
    asked[place] = feeds(length, 2, 2)
    asked[place]["mask"][1] = 0
    assert [one.feeds for one in asyncio.run(filled(asked)).requests] == asked[:1]


def test_what_has_not_one_length_goes_alone() -> None:
    assert PADDING.length({"ids": np.zeros((1, 3)), "mask": np.zeros((1, 4))}) is None
    assert PADDING.length({"ids": np.zeros((1, 3))}) is None
    assert PADDING.length(feeds(3, 0)) == 3


@pytest.mark.parametrize(
    ("changes", "mask", "told"),
    [
        ({"masked": False}, "mask", "for that changes the output 'mean'"),
        ({}, "maks", "has no such input: expected one of 'ids', 'mask'"),
        ({"other": "width"}, "mask", "expected no open axes but the batch and 'length'"),
    ],
)
def test_models_that_cannot_be_filled_up(changes: Any, mask: str, told: str, tmp_path: Path) -> None:
    model = save(tmp_path / "model.onnx", **changes)
    with (
        launcher.start(model, ranks=1, launcher="local", threads=1) as group,
        pytest.raises(ConfigError, match="--pad-mask") as error,
    ):
        Batching(4, mask=mask).checked(group)
    assert told in str(error.value)


@dataclass
class Given:
    """A model of these inputs, which gives the last number of each row."""

    inputs: list[TensorSpec]
    outputs: list[TensorSpec] = field(default_factory=lambda: [TensorSpec("y", np.dtype("int64"), ("n",))])
    optional_inputs: list[TensorSpec] = field(default_factory=list)

    def predict(self, given: Mapping[str, Any]) -> dict[str, Any]:
        checked_feeds(self.inputs, given)
        return {"y": np.asarray(given["mask"]).max(axis=1)}


MASK = TensorSpec("mask", np.dtype("int64"), ("n", "length"))


@pytest.mark.parametrize(
    "specs",
    [
        [TensorSpec("mask", np.dtype("int64"), ("n", "n"))],
        [MASK, TensorSpec("x", np.dtype("float32"), ("length",))],
        [MASK, TensorSpec("x", np.dtype("float32"), ("length", 3))],
    ],
    ids=str,
)
def test_the_batch_is_no_length(specs: list[TensorSpec]) -> None:
    with pytest.raises(ConfigError, match=f"{specs[-1].name!r} is .*: expected the batch first"):
        Batching(4, mask="mask").checked(Given(specs))


def test_texts_beside_what_is_filled_up() -> None:
    model = Given([MASK, TensorSpec("language", np.dtype(object), ("n",))])
    padding = Batching(4, mask="mask").checked(model).padding
    assert padding is not None and padding.axes == {"mask": [1], "language": [], "y": []}


def test_joining_is_needed(words: Path, texts: Path) -> None:
    for model, why in ((words, "give --max-batch-size too"), (texts, "texts are always joined")):
        with pytest.raises(ConfigError, match=why):
            Offer("x", Job(model=model), ModelOptions(pad_mask="mask")).made(ServeLimits(), Metrics())
    assert isinstance(
        Offer("x", Job(model=words), ModelOptions(max_batch_size=2, pad_mask="mask")).made(
            ServeLimits(), Metrics()
        ),
        TensorModel,
    )


@pytest.mark.parametrize(("length", "joined"), [(5, 2), (3, 1)])
def test_only_lengths_for_which_rows_are_apart_are_joined(length: int, joined: int) -> None:
    """Rows are computed apart where ``total`` is a sum; ONNX Runtime does not check that."""
    shapes: dict[str, tuple[str | int, ...]] = {"past": ("n", "p"), "new": ("n", "s"), "mask": ("n", "total")}
    specs = [TensorSpec(name, np.dtype(np.float32), shape) for name, shape in shapes.items()]
    sizes = {"past": 2, "new": 3, "mask": length}
    request = {name: np.zeros((1, size), np.float32) for name, size in sizes.items()}

    async def count() -> int:
        queue: FairQueue[Request] = FairQueue(9)
        for _ in range(2):
            queue.put(Request(request, 0.0, asyncio.get_running_loop().create_future()))
        batch = Batch([queue.take() or pytest.fail()])
        await (
            Batching(8, apart=lambda names: {"total": "p + s"})
            .checked(Given(specs, [specs[0]]))
            .fill(batch, queue)
        )
        return len(batch.requests)

    assert asyncio.run(count()) == joined


def test_requests_that_name_their_inputs_in_another_order_are_joined() -> None:
    first, second = feeds(8, 0), feeds(8, 1)
    batch = asyncio.run(filled([first, {"mask": second["mask"], "ids": second["ids"]}]))
    assert len(batch.requests) == 2
    np.testing.assert_array_equal(batch.feeds()["ids"], np.concatenate([first["ids"], second["ids"]]))
    np.testing.assert_array_equal(batch.feeds()["mask"], np.concatenate([first["mask"], second["mask"]]))


@pytest.mark.parametrize(
    ("rows", "joined"), [([3, 4, 1], 3), ([3, 5], 2), ([3, 6], 1), ([8, 1], 1), ([9, 1], 1)]
)
def test_no_more_rows_are_joined_than_there_may_be(rows: list[int], joined: int) -> None:
    """Of eight; a single request may have more."""
    batch = asyncio.run(filled([feeds(4, seed, count) for seed, count in enumerate(rows)]))
    assert len(batch.requests) == joined and batch.rows == sum(rows[:joined])
