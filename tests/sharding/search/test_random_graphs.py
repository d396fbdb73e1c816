"""Random graphs, sliced with placements that nobody would choose, give what the unsliced graphs give.

``SHARDRUN_TEST_GRAPHS`` sets how many graphs are tried (in the tests a hundred, always the same).
"""

import os
import shutil
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import sharding.planning.plan
from sharding.demands.options import SliceOptions
from sharding.planning.plan import Planner
from sharding.reading.read import read_model
from sharding.slices.mesh import Mesh
from sharding.writing.write import write_slices
from tests.sharding import lockstep
from tests.sharding.random_graphs import RandomGraph, random_choices, random_graphs

GRAPHS = int(os.environ.get("SHARDRUN_TEST_GRAPHS", "100"))
TOLERANCE = 1e-4
SMALL = 0.1
"""Outputs below this are sums that cancel; their error is measured against it."""


pytestmark = pytest.mark.usefixtures("quiet")


@settings(
    max_examples=GRAPHS,
    deadline=None,
    derandomize="SHARDRUN_TEST_GRAPHS" not in os.environ,
    database=None,
    phases=(Phase.generate, Phase.shrink) if "SHARDRUN_TEST_GRAPHS" in os.environ else (Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
@given(random_graphs(), st.sampled_from((2, 3, 4)), st.integers(0, 2**20), st.booleans())
def test_any_placement_is_exact(
    tmp_path_factory: pytest.TempPathFactory, graph: RandomGraph, world: int, seed: int, solved: bool
) -> None:
    folder = tmp_path_factory.getbasetemp() / "random_graph"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = graph.save(folder / "model.onnx")
    expected = lockstep.reference(path, graph.feeds)
    source = read_model(path)
    planner = Planner(source, SliceOptions(allow_replicated=True))
    random = np.random.default_rng(seed)

    def choose(_: Any, steps: Any, ranks: int, *rest: Any) -> list[int]:
        return random_choices(steps, ranks, random)

    with pytest.MonkeyPatch.context() as patch:
        if not solved:
            patch.setattr(sharding.planning.plan, "solve_with_state", choose)
        plan = planner.plan(Mesh.of(tensor=world))
    write_slices(plan, folder / "slices")
    for rank, outputs in enumerate(lockstep.run_slices(folder / "slices", graph.feeds)):
        for name, value in expected.items():
            found = outputs[name]
            assert (found.shape, found.dtype) == (value.shape, value.dtype)
            scale = max(float(np.abs(value).max(initial=0)), SMALL)
            error = float(np.abs(found - value).max(initial=0)) / scale
            assert error <= TOLERANCE, f"rank {rank} of {world}, {name}: {error}"
