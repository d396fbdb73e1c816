"""Owner and who attaches build the model with the same options: which one differs is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ranks
from ranks.weights.shared import options, protocol
from tests.ranks.weights_worker import INPUT, Refused, Workers

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("single")]

BOTH = {"cpu_context": {"variable_weights_list": "w1, w2"}}
ONE = {"cpu_context": {"variable_weights_list": "w1"}}
ROUNDED = {"execution_plan": {"MatMul": "data_type:float16"}}

DIFFERENT: list[tuple[dict[str, Any] | None, dict[str, Any] | None, str]] = [
    (ONE, None, "has other variable weights: it was built with 'w1', but this process with none. "),
    (None, ONE, "has other variable weights: it was built with none, but this process with 'w1'. "),
    (BOTH, ONE, "has other variable weights: it was built with 'w1', 'w2', but this process with 'w1'. "),
    (
        ROUNDED,
        None,
        "has another execution plan: it was built with 'MatMul: float16', but this process with none. ",
    ),
    (
        {"cpu_context": {"precision_mode": "enforce_fp32"}},
        None,
        "has another precision mode: it was built with 'float32', but this process with none. ",
    ),
]


@pytest.mark.parametrize(("theirs", "ours", "sentence"), DIFFERENT)
def test_which_option_differs(
    theirs: Any, ours: Any, sentence: str, workers: Workers, shared_model: Path
) -> None:
    other = workers.new()
    with ranks.share_weights(str(shared_model), pids=[other.pid], config_dict=theirs) as owner:
        found = other.do("attach", given=owner.handle, path=str(shared_model), config_dict=ours)
        assert isinstance(found, Refused) and found.kind == "WeightsError"
        assert f"which shares the weights, {sentence}Give the same " in found.text
        assert other.do("attach", given=owner.handle, path=str(shared_model), config_dict=theirs)


def test_names_have_no_order(workers: Workers, shared_model: Path) -> None:
    other = workers.new()
    turned = {"cpu_context": {"variable_weights_list": "w2, w1"}}
    with ranks.share_weights(str(shared_model), pids=[other.pid], config_dict=BOTH) as owner:
        attached = other.do("attach", given=owner.handle, path=str(shared_model), config_dict=turned)
        assert attached == "attached"
        new = [ranks.Tensor(np.zeros((8, 2048), np.float32))]
        new[0].name = "w1"
        owner.update_weights([new])
        assert not other.do("predict").any()
        assert not owner.predict([INPUT])[0].get_data_to_numpy().any()


def test_keys_beside_share_weights_and_attach(shared_model: Path) -> None:
    path, pids = str(shared_model), {"pids": "1"}
    with pytest.warns(UserWarning, match="have no effect: share_weights goes by what it was given"):
        owner = ranks.share_weights(path, config_dict=pids)
    with owner, pytest.warns(UserWarning, match="have no effect: attach goes by what it was given"):
        ranks.attach(owner.handle, path, config_dict=pids).close()


def test_many_names_fit_into_a_packet() -> None:
    names = ['"\u4f60"' * 20 + str(index) for index in range(100_000)]
    facts = {name: options.fact(names) for name in options.OPTIONS}
    assert len(json.dumps(facts)) < protocol.LARGEST_PACKET // 2
    assert facts["execution_plan"].endswith("(100000 in all)")
    others = {name: options.fact(names[1:]) for name in options.OPTIONS}
    assert "(99999 in all)" in str(options.difference(facts, others))
    assert options.difference(facts, facts) is None
