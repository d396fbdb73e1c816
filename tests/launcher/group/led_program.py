"""Started once for each rank by something else: rank 0 asks, and compares with plain ONNX Runtime.

Arguments: a folder with models of `tests.ranks.state_models`, and what to do. Rank 0 prints JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from launcher import generate, lead
from launcher.errors import ConfigError, ShardrunError
from launcher.generation.model import of_ranks
from launcher.generation.resident import ResidentDecoder
from launcher.group.led import LedModel
from launcher.group.requests import PredictError
from ranks.identity.identity import identify
from ranks.run.rank_model import RankModel
from tests.ranks import state_models
from tests.ranks.state_models import Plain

COUNTS = (5, 1, 1, 3, 1, 1)


def close(found: dict[str, Any], want: Any) -> bool:
    """Whether an answer is that of the whole model, and nothing else."""
    (array,) = found.values()
    return array.shape == want.shape and bool(np.abs(array - want).max() <= 1e-5 * max(1, np.abs(want).max()))


def sessions(model: LedModel, form: str, path: Path) -> dict[str, object]:
    """Steps, forks, rewinds, steps that cannot be computed, and changes that fail."""
    first = "input" if form == "streaming" else "input_ids"
    plain, arrays = Plain(path), state_models.steps(form, COUNTS)
    want = [plain.step(array) for array in arrays]
    good, refused = [], ""
    with model.session() as session:
        for array, result in zip(arrays[:3], want[:3], strict=True):
            good.append(close(session.predict({first: array}), result))
        fork = session.fork()
        if form != "streaming":
            try:
                session.predict({first: np.full_like(arrays[0], 999)})
            except PredictError as error:
                refused = str(error)
        for one in (session, fork):
            for array, result in zip(arrays[3:], want[3:], strict=True):
                good.append(close(one.predict({first: array}), result))
        session.rewind(0)
        good.append(close(session.predict({first: arrays[0]}), want[0]))
    return {"good": good, "refused": refused}


def texts(model: LedModel, path: Path) -> dict[str, object]:
    """Tokens, of one prompt and of several at once."""
    prompts, want = [[3, 17, 5], [8] * 9, [1]], []
    for prompt in prompts:
        plain = Plain(path)
        ids = [int(plain.step(np.array([prompt]))[0, -1].argmax())]
        while len(ids) < 8:
            ids.append(int(plain.step(np.array([ids[-1:]]))[0, -1].argmax()))
        want.append(ids)
    language = of_ranks(model)
    assert isinstance(language.decoder, ResidentDecoder)
    with language.engine(sequences=3) as engine:
        streams = [engine.submit(prompt, max_new_tokens=8) for prompt in prompts]
        together = [stream.finish()[0].ids for stream in streams]
    return {
        "batches": language.decoder.batches,
        "together": together == want,
        "alone": [generate(model, prompt, max_new_tokens=8).ids for prompt in prompts] == want,
        "method": model.generate(prompts[0], max_new_tokens=8).ids == want[0],
    }


def trouble(folder: Path, what: str) -> None:
    """A leader that is slow, or whose work fails; another rank that is lost, or that alone cannot compute."""
    path = folder / "joined.onnx"
    ids = state_models.steps("joined", [3])[0]
    odd_one = {"killed": 1, "alone": 1, "alone, the leader": 0, "no memory": 1}.get(what)
    if identify().rank == odd_one:
        step, calls = RankModel.step, itertools.count()

        def odd(self: RankModel, number: int, feeds: Any, asked: Any = None) -> Any:
            if next(calls) == 20:
                if what.startswith("alone"):
                    raise ShardrunError("This rank has a cold.")
                if what == "no memory":
                    raise MemoryError("none left")
                os.kill(os.getpid(), signal.SIGKILL)
            return step(self, number, feeds, asked)

        RankModel.step = odd  # type: ignore[method-assign]

    def work(model: LedModel) -> bool:
        plain, session = Plain(path), model.session()
        good = [close(session.predict({"input_ids": ids}), plain.step(ids))]
        if what == "idle":
            time.sleep(8)
        elif what == "raises":
            raise ConfigError("the work went wrong")
        try:
            session.predict({"input_ids": np.full_like(ids, 999)})
        except PredictError as error:
            good.append("indices" in str(error))
        for _ in range(40):
            good.append(close(session.predict({"input_ids": ids[:, :1]}), plain.step(ids[:, :1])))
        return all(good)

    try:
        print(identify().rank, lead(folder / f"slices{identify().world_size}", work, threads=1), flush=True)
    except ShardrunError as error:
        print(identify().rank, error, flush=True)
        time.sleep(1)  # mpirun ends all as soon as one has ended
        raise


def main(folder: Path, what: str) -> None:
    """Does one of the things that the tests ask for."""
    if what != "all":
        trouble(folder, what)
        return
    for form in state_models.FORMS:
        path = folder / f"{form}.onnx"
        done = [lead(path, partial(sessions, form=form, path=path), threads=1, allow_replicated=True)]
        if form != "streaming":
            done.append(lead(path, partial(texts, path=path), threads=1))
        if identify().rank == 0:
            print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
