"""One rank of tests/gpu/test_several.py: `SCENARIO FOLDER`; prints what it found as JSON, the last line."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from ranks.errors import PeerLostError, ShardrunError
from ranks.identity.identity import identify
from ranks.run import executor, group, target
from ranks.run.placement import Placement
from tests.gpu.assigned import RECORD, nodes_of
from tests.gpu.near import assert_on_cuda

PRODUCTS = ("MatMul", "Gemm", "FusedMatMul")


def assert_products_on_cuda(sessions: Iterable[Any]) -> None:
    """CUDA's provider has taken the products of each session that has some, and one has."""
    found = [one for one in sessions if any(kind in PRODUCTS for _, kind, _ in nodes_of(one))]
    assert found or not hasattr(ort.InferenceSession, "get_provider_graph_assignment_info")
    for session in found:
        assert_on_cuda(session, *PRODUCTS)


def sliced(folder: Path) -> Any:
    """The shard of a rank that the target gpu puts where it belongs."""
    x = np.load(folder / "x.npy")
    try:
        _, loaded = target.load(folder / "two", identify(), "gpu", options=executor.LoadOptions(RECORD))
    except ShardrunError as error:
        return {"error": str(error)}
    for scale in (3, 2, 1):  # what is left of a run before is not right
        (y,) = loaded.run({"x": x * np.float32(scale)})
    sessions = [one for one in loaded._program._sessions if one is not None]  # type: ignore[union-attr]
    assert_products_on_cuda(sessions)
    told = [session.get_provider_options()["CUDAExecutionProvider"]["device_id"] for session in sessions]
    names = {device: communicator.name for device, (_, _, communicator) in group.GROUPS.joined.items()}
    group.leave()
    return {"y": y.tolist(), "devices": told, "collectives": names}


SCALES = (1, 1, 2, 3, 1)
"""What `graphs` multiplies its feed by, run by run: the first finds shapes, the second is captured."""


def graphs(folder: Path) -> Any:
    """A rank whose work is captured as CUDA graphs, with other values in later runs."""
    x = np.load(folder / "x.npy")
    _, loaded = target.load(folder / "two", identify(), "gpu")
    found = [loaded.run({"x": x * np.float32(scale)})[0].tolist() for scale in SCALES]
    sessions = [one for one in loaded._program._sessions if one is not None]  # type: ignore[union-attr]
    told = [one.get_provider_options()["CUDAExecutionProvider"]["enable_cuda_graph"] for one in sessions]
    group.leave()
    return {"found": found, "captured": told}


def killed(folder: Path) -> Any:
    """Rank 1 dies; rank 0 notices in a sum and leaves the group."""
    import torch

    world: Any = group.join(device="cuda")
    buffer = torch.ones(1 << 20, device=world.device)
    world.all_reduce(buffer)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun, caught = time.monotonic(), ""
    try:
        for _ in range(1000):
            world.all_reduce(buffer)
    except PeerLostError as error:
        caught = str(error)
    noticed = time.monotonic() - begun
    begun = time.monotonic()
    group.leave()
    return {"caught": caught, "noticed": noticed, "left": time.monotonic() - begun}


def variable(folder: Path) -> Any:
    """Each rank's variable weights lie on its own device, and an update of them is seen."""
    x = np.load(folder / "x.npy")
    loaded = executor.load(
        folder / "two",
        placement=Placement(("CUDAExecutionProvider",)),
        variable_weights=["w1"],
        options=executor.LoadOptions(RECORD),
    )
    before = loaded.run({"x": x})[0].tolist()
    assert loaded.weights is not None
    assert_products_on_cuda(filter(None, loaded._program._sessions))  # type: ignore[union-attr]
    feeds = loaded.weights.snapshot().feeds.values()
    places = [list(feed._get_c_value().__dlpack_device__()) for feed in feeds]
    loaded.update_weights({"w1": np.load(folder / "new.npy")})
    after = loaded.run({"x": x})[0].tolist()
    group.leave()
    return {"before": before, "after": after, "places": places}


def main() -> None:
    """Runs the scenario."""
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
