"""What a server stands in front of, asked without one: a contestant of benchmarks/serving.py.

    python benchmarks/serving_group.py tensors MODEL.onnx INPUTS.npz RANKS
    python benchmarks/serving_group.py texts FOLDER - RANKS

Each line on standard input is a load, as JSON, and is answered with what benchmarks/serving_load.py gives:
so many threads each ask `Group.predict` for so many seconds, or each have the engine generate one text.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def tensors(model: str, inputs: str, ranks: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Loads of predictions."""
    from runner_load import load

    import launcher

    group = launcher.start(model, ranks=ranks, threads=1, launcher="local", allow_replicated=True)
    with np.load(inputs) as file:
        feeds = dict(file)

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        return load(lambda: group.predict(feeds), asked["clients"], asked["seconds"])

    return answer


def texts(folder: str, _: str, ranks: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Loads of texts."""
    from launcher import load_language_model
    from launcher.generation.sample import Token

    model = load_language_model(folder, ranks=ranks, threads=1, launcher="local")
    engine = model.engine(sequences=8)  # which does not keep the model

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        found: list[tuple[list[float], int]] = []
        began = time.perf_counter()

        def client(prompt: list[int]) -> None:
            assert model.decoder is not None
            stream = engine.submit(prompt, max_new_tokens=asked["new"], temperature=0, ignore_eos=True)
            events = [(time.perf_counter(), event) for event in stream if isinstance(event, Token)]
            found.append(([at for at, event in events if event.text], len(events)))

        threads = [threading.Thread(target=client, args=(prompt,)) for prompt in asked["prompts"]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gaps = [(b - a) * 1e3 for times, _ in found for a, b in itertools.pairwise(times)]
        if len(found) < len(threads):
            raise SystemExit("A text failed: see above.")
        return {
            "first": [(times[0] - began) * 1e3 for times, _ in found],
            "gaps": gaps, "tokens": sum(count for _, count in found), "seconds": time.perf_counter() - began,
        }  # fmt: skip

    return answer


def main() -> None:
    """Says "ready", then answers until its input ends."""
    kind, model, inputs, ranks = sys.argv[1:]
    answer = (tensors if kind == "tensors" else texts)(model, inputs, int(ranks))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
