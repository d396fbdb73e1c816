"""How closely ranks agree with ONNX Runtime GenAI, and GenAI with itself, on the logits of language models.

    python benchmarks/agreement.py FOLDER... [--genai PYTHON] [--ranks 1 2 3 4] [--prompts 4] [--prompt 48]
        [--new 32] [--json FILE]

FOLDERs are of ONNX Runtime GenAI's model builder; PYTHON is one that has GenAI (`scripts/generation_peers.sh`
makes it). Without it, plain ONNX Runtime is what all are compared with.

The first contestant reads random prompts and continues them greedily; all others are given the same tokens,
so that one token that differs does not hide how close the rest is. For each position the largest difference
of a logit is divided by the largest logit. Printed are the median and the largest of it, how many positions
have the same best token, and how far apart the best two were, on the same scale, where it was another one.

Products of 4-bit weights with ``accuracy_level`` 4 round what they read to 8 bits. A number that lies between
two such steps goes another way after a change of one unit in its last place, and then so do others after it.
How far that alone takes a model is measured here, too: by plain ONNX Runtime with the first normalization's
weights changed by one unit in the last place, and by GenAI with a prompt that is read token by token. Against
that stands the same model at ``accuracy_level`` 1, which rounds nothing: ranks against plain ONNX Runtime.
And with `--sums whole` no rank has a part of a sum, so that nothing is added up in another order.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
from common import parser_of, write_json
from generation_peers import GENAI_MODEL

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]
PRODUCT, LEVEL = "MatMulNBits", "accuracy_level"
ROUNDS, EXACT = 4, 1
"""Levels of accuracy: activations of 8 bits, and of float32."""

GENAI = """
prompts, new, out, chunk = np.load(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6])
forced = np.load(sys.argv[7]) if len(sys.argv) > 7 else None
logits, ids = [], []
for row, prompt in enumerate(prompts):
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt) + new + 1, do_sample=False)
    generator = og.Generator(model, params)
    for start in range(0, len(prompt), chunk or len(prompt)):
        generator.append_tokens(prompt[None, start : start + (chunk or len(prompt))].astype(np.int32))
    for step in range(new):
        logits.append(np.array(generator.get_logits(), np.float32).reshape(-1))
        ids.append(int(logits[-1].argmax()) if forced is None else int(forced[row, step]))
        if step + 1 < new:
            generator.append_tokens(np.array([ids[-1:]], np.int32))
np.savez(out, logits=np.array(logits).reshape(len(prompts), new, -1), ids=np.array(ids).reshape(-1, new))
"""


@dataclass(frozen=True)
class Task:
    """What all contestants do."""

    prompts: Array
    new: int
    work: Path
    """A folder for files."""
    python: str
    """One that has GenAI; empty: there is none."""


def genai(folder: Path, task: Task, forced: Array | None, *, threads: int = 1, chunk: int = 0) -> Any:
    """GenAI's logits, and the tokens that it has read (its own greedy ones where none are ``forced``).

    ``chunk``: how many tokens of a prompt it reads at a time; 0: all."""
    np.save(task.work / "prompts.npy", task.prompts)
    out = task.work / "genai.npz"
    words = (folder, threads, task.work / "prompts.npy", task.new, out, chunk)
    command = [task.python, "-c", GENAI_MODEL + GENAI, *map(str, words)]
    if forced is not None:
        np.save(task.work / "forced.npy", forced)
        command.append(str(task.work / "forced.npy"))
    subprocess.run(command, check=True, stdout=sys.stderr)
    found = np.load(out)
    return found["logits"], found["ids"]


def plain(model: Path, task: Task, forced: Array | None, *, optimized: bool = True) -> Any:
    """Logits of plain ONNX Runtime with one thread, and the tokens read."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    decoder = json.loads((model.parent / "genai_config.json").read_text())["model"]["decoder"]
    inputs, outputs = session.get_inputs(), [value.name for value in session.get_outputs()]
    empty = np.zeros((1, decoder["num_key_value_heads"], 0, decoder["head_size"]), np.float32)
    ids = np.zeros((len(task.prompts), task.new), np.int64) if forced is None else forced
    found = []
    for row, prompt in enumerate(task.prompts):
        state = {value.name: empty for value in inputs if value.name.startswith("past")}
        length = 0
        for step in range(task.new):
            read = prompt if step == 0 else ids[row, step - 1 : step]
            length += len(read)
            feeds = {"input_ids": read[None], "attention_mask": np.ones((1, length), np.int64)}
            feeds["position_ids"] = np.arange(length - len(read), length)[None]
            feeds = {value.name: feeds[value.name] for value in inputs if value.name in feeds} | state
            results = dict(zip(outputs, session.run(None, feeds), strict=True))
            found.append(results["logits"][0, -1])
            state = {name: results[name.replace("past_key_values", "present")] for name in state}
            if forced is None:
                ids[row, step] = found[-1].argmax()
    return np.array(found).reshape(len(task.prompts), task.new, -1), ids


def of_ranks(model: Path, task: Task, forced: Array, ranks: int, *, sums: str = "parts") -> Array:
    """Logits of ranks with one thread each."""
    from launcher import start
    from sharding.demands.options import SliceOptions

    options = SliceOptions(sums=sums, allow_replicated=True)
    found = []
    with start(model, ranks=ranks, launcher="local", threads=1, options=options) as group:
        for row, prompt in enumerate(task.prompts):
            with group.session() as session:
                for step in range(task.new):
                    read = prompt if step == 0 else forced[row, step - 1 : step]
                    found.append(session.predict({"input_ids": read[None]})["logits"][0, -1])
    return np.array(found).reshape(len(task.prompts), task.new, -1)


def changed(folder: Path, target: Path, *, level: int | None = None) -> Path:
    """A copy of a folder's model: at another level of accuracy, or with the first normalization's weights
    changed by one unit in the last place."""
    import onnx

    model = onnx.load(folder / "model.onnx")
    if level is None:
        _nudge(model)
    for node in model.graph.node if level is not None else ():
        for attribute in node.attribute:
            if node.op_type == PRODUCT and attribute.name == LEVEL:
                attribute.i = level
    target.mkdir()
    (target / "genai_config.json").write_bytes((folder / "genai_config.json").read_bytes())
    onnx.save_model(model, target / "model.onnx", save_as_external_data=True, location="model.onnx.data")
    return target / "model.onnx"


def _nudge(model: onnx.ModelProto) -> None:
    from onnx import numpy_helper

    norm = next(node for node in model.graph.node if "LayerNormalization" in node.op_type)
    weight = next(item for item in model.graph.initializer if item.name in norm.input)
    values = numpy_helper.to_array(weight)
    upward = np.random.default_rng(1).random(values.shape) < 0.5
    away = np.where(upward, np.inf, -np.inf).astype(values.dtype)
    weight.CopyFrom(numpy_helper.from_array(np.nextafter(values, away), weight.name))


def rounds(folder: Path) -> bool:
    """Whether products of the folder's model round what they read."""
    import onnx

    model = onnx.load(folder / "model.onnx", load_external_data=False)
    return any(
        attribute.name == LEVEL and attribute.i == ROUNDS
        for node in model.graph.node
        for attribute in node.attribute
        if node.op_type == PRODUCT
    )


def contest(folder: Path, task: Task, worlds: list[int]) -> Iterator[tuple[str, Array, Array]]:
    """The name of each contestant, its logits, and those that it is compared with."""
    model = folder / "model.onnx"
    if task.python:
        first, ids = genai(folder, task, None)
        yield "GenAI, 2 threads", genai(folder, task, ids, threads=2)[0], first
        yield "GenAI, prompt token by token", genai(folder, task, ids, chunk=1)[0], first
        yield "ONNX Runtime", plain(model, task, ids)[0], first
    else:
        first, ids = plain(model, task, None)
    yield "ONNX Runtime, no optimizations", plain(model, task, ids, optimized=False)[0], first
    nudged = changed(folder, task.work / f"{folder.name}-nudged")
    yield "ONNX Runtime, a norm's last bits changed", plain(nudged, task, ids)[0], first
    for ranks in worlds:
        yield named(ranks), of_ranks(model, task, ids, ranks), first
    for ranks in [ranks for ranks in worlds if ranks > 1]:
        yield f"{named(ranks)}, --sums whole", of_ranks(model, task, ids, ranks, sums="whole"), first
    if rounds(folder):
        whole = changed(folder, task.work / f"{folder.name}-exact", level=EXACT)
        exact = plain(whole, task, ids)[0]
        for ranks in worlds:
            yield f"nothing rounded: {named(ranks)}", of_ranks(whole, task, ids, ranks), exact


def named(ranks: int) -> str:
    """``2 ranks``."""
    return f"{ranks} rank{'s' * (ranks > 1)}"


def figures(mine: Array, theirs: Array) -> dict[str, float]:
    """How far logits are from others."""
    scale = np.abs(theirs).max(axis=-1)
    errors = np.abs(mine - theirs).max(axis=-1) / scale
    other = mine.argmax(axis=-1) != theirs.argmax(axis=-1)
    best = np.sort(theirs, axis=-1)[..., -2:]
    margins = (best[..., 1] - best[..., 0]) / scale
    return {
        "median": float(np.median(errors)),
        "largest": float(errors.max()),
        "same best token": float((~other).sum()),
        "positions": float(other.size),
        "largest margin lost": float(margins[other].max(initial=0)),
    }


def main() -> None:
    options = {"ranks": [1, 2, 3, 4], "prompts": 4, "prompt": 48, "new": 32, "json": Path}
    parser = parser_of(__doc__, genai="", **options)
    parser.add_argument("folders", type=Path, nargs="+")
    args = parser.parse_args()
    found: dict[str, dict[str, dict[str, float]]] = {}
    for folder in args.folders:
        print(f"{folder.name}: {args.prompts} prompts of {args.prompt} tokens, {args.new} more each")
        print(f"  {'':41}  {'median':>8}  {'largest':>8}  {'same best':>9}  margin lost")
        with tempfile.TemporaryDirectory() as work:
            prompts = np.random.default_rng(7).integers(5, 900, (args.prompts, args.prompt))
            task = Task(prompts, args.new, Path(work), args.genai)
            try:
                for name, mine, theirs in contest(folder, task, args.ranks):
                    row = found.setdefault(folder.name, {})[name] = figures(mine, theirs)
                    same = f"{row['same best token']:.0f}/{row['positions']:.0f}"
                    lost = f"{row['largest margin lost']:.1e}" if row["largest margin lost"] else "-"
                    print(f"  {name:41}  {row['median']:8.1e}  {row['largest']:8.1e}  {same:>9}  {lost}")
            except subprocess.CalledProcessError as error:
                print(f"  not compared: GenAI ended with exit code {error.returncode}, for the reason above")
    write_json(args.json, found)


if __name__ == "__main__":
    main()
