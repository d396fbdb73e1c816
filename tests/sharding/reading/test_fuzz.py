"""Damaged models: each gives a plan, or one sentence that names the file; never anything else, and soon.

``SHARDRUN_TEST_MUTATIONS`` sets how many are tried (in the tests some hundreds, always the same).
"""

import os
import random
import shutil
import signal
import time
from pathlib import Path
from types import FrameType

import onnx
import pytest

import sharding
from sharding.errors import ShardrunError
from sharding.slices.manifest import read_manifest
from tests.sharding import graphs
from tests.sharding.lockstep import peak_kilobytes
from tests.sharding.mutations import damage_bytes, damage_message, seeds

MUTATIONS = int(os.environ.get("SHARDRUN_TEST_MUTATIONS", "500"))
SECONDS = 30
"""No damaged model of a few nodes may take longer: it would be a loop that does not end."""
KILOBYTES = 700_000
"""What all of them together may add to the memory of the process."""


pytestmark = pytest.mark.usefixtures("quiet")


def _alarm(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"still at it after {SECONDS} seconds")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", ["bytes", "message"])
def test_damaged_models_give_a_plan_or_a_sentence(tmp_path: Path, kind: str) -> None:
    models = seeds()
    (tmp_path / "weights.data").write_bytes(graphs.array(16, 32).tobytes())
    path = tmp_path / "damaged.onnx"
    before, start = peak_kilobytes(), int(os.environ.get("SHARDRUN_TEST_SEED", "0"))
    outcomes = {"plan": 0, "sentence": 0}
    handler = signal.signal(signal.SIGALRM, _alarm)
    longest = 0.0
    try:
        for number in range(start, start + MUTATIONS):
            chance = random.Random(f"{kind} {number}")
            model = chance.choice(models)
            content = model.SerializeToString()
            if kind == "bytes":
                content = damage_bytes(content, chance)
            else:
                content = damage_message(model, chance).SerializeToString()
            path.write_bytes(content)
            (tmp_path / "last").write_text(str(number))  # which one it was, should the process die
            signal.alarm(SECONDS)
            began = time.monotonic()
            try:
                outcomes[_outcome(path, tmp_path / "slices", number)] += 1
            finally:
                signal.alarm(0)
                longest = max(longest, time.monotonic() - began)
    finally:
        signal.signal(signal.SIGALRM, handler)
    grown = peak_kilobytes() - before
    print(f"{kind}: {outcomes}, longest {longest:.2f} s, memory grew by {grown} kB")
    assert min(outcomes.values()) >= MUTATIONS // 50, outcomes
    assert grown < KILOBYTES


def _outcome(path: Path, output: Path, number: int) -> str:
    try:
        shutil.rmtree(output, ignore_errors=True)
        sharding.slice_model(path, 2, output, allow_replicated=True)
        read_manifest(output)
    except ShardrunError as error:
        text = str(error)
        assert path.name in text, f"mutation {number}: {text[:300]}"
        assert "\n" not in text and len(text) < 1500, f"mutation {number}: {text[:300]}"
        return "sentence"
    except TimeoutError:
        raise
    except Exception as error:
        raise AssertionError(f"mutation {number}: {type(error).__name__}: {error}") from error
    return "plan"


def test_bodies_in_bodies_without_end(tmp_path: Path) -> None:
    """Nested deeper than any parser goes: a sentence, not a crash."""
    graph = onnx.parser.parse_graph("g (float[4] x, bool c) => (float[4] y) { y = Relu(x) }")
    content = graph.SerializeToString()
    for _ in range(3000):
        content = _field(5, _field(1, b"then_branch") + _field(6, content) + b"\xa0\x01\x05")
        content = _field(1, _field(4, b"If") + _field(1, b"c") + _field(2, b"y") + content)
    path = tmp_path / "deep.onnx"
    path.write_bytes(b"\x08\x09" + _field(8, b"\x10\x12") + _field(7, content + _field(12, b"\n\x01y")))
    with pytest.raises(ShardrunError, match=r"deep\.onnx"):
        sharding.plan_model(path, 2)


def _field(number: int, payload: bytes) -> bytes:
    length, size = len(payload), b""
    while length >= 0x80:
        size += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + payload
