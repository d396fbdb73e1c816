"""Slices real architectures, runs the slices against ONNX Runtime, and writes docs/coverage.md.

    python scripts/coverage.py                   # all of it, about eight minutes: writes docs/coverage.md
    python scripts/coverage.py bert llama        # only these: the other rows of the page stay

Models whose exported graphs are not kept (see `tests.kept`) need what exports them: the extra `demo`. They
are cached as the tests' models are. Every slicing runs in one process, in lockstep; those for two ranks also
as two processes.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import tempfile
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version
from math import isinf
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from launcher.errors import ShardrunError  # noqa: E402  # the path above is needed first
from sharding.common.text import counted  # noqa: E402
from tests.architectures import generators, zoo  # noqa: E402
from tests.architectures.measure import Measured, measure, own_spread, processes_error  # noqa: E402
from tests.architectures.table import HEAD as TABLE_HEAD  # noqa: E402
from tests.architectures.table import PAGE, inside_and_outside, read, row  # noqa: E402

TENSOR_RANKS = (2, 4, 8)
OTHER_STRATEGIES = ("bert", "gpt2", "resnet50", "unet")
PACKAGES = ("torch", "transformers", "onnxscript", "onnx", "onnxruntime-gpu", "onnxruntime", "numpy")

REASONS = {
    "t5_decoder": """a layer has attention to itself, attention to the encoder and a feed-forward: three
sums, not two.""",
    "t5_merged": """as the decoder of T5: three sums, not two. A step takes one of the two branches, and both
are counted here.""",
    "lstm": """a step of an LSTM needs the whole hidden state of the step before, so that its hidden units
could only be split with a collective in every step. The two directions are independent, so two ranks hold
half each, and more ranks hold no less.""",
    "deepseek_v3": """the latent that a layer's queries are made of is computed in parts and gathered: with 4
and 8 ranks the planner's estimate has this faster than the whole product on every rank, which is what an
expert does. The latent of keys and values is computed whole.""",
    "qwen3_5": """the short convolution of a layer of linear attention reads queries, keys and values side by
side, of these twice as many. Ranks hold blocks of equal size, so that each has its values in two pieces,
which belong to other heads than its queries and keys: they are gathered.""",
    "llama_4bit": """the summed axis of the feed-forward is 44 blocks of 32 weights, which share a scale;
8 ranks do not divide them, so that its second weight is split by output and the values before it are
gathered.""",
    "bert_int8_dynamic": """`DynamicQuantizeLinear` takes its scale from the range of the whole activation.
Where the activation is split, ranks first exchange their smallest and largest values (8 bytes each), so that
all of them round as one: a tiny collective before a product that is summed. With more ranks the activation
before the attention's last product is gathered instead.""",
    "llama_int8_dynamic": "as BERT with dynamic quantisation.",
}
"""Why an architecture is not at its goals, where that is known."""


def measured(name: str) -> list[Measured]:
    """All slicings of one architecture."""
    model = zoo.get(name)
    wanted = [("tensor", ranks) for ranks in TENSOR_RANKS]
    if name in OTHER_STRATEGIES:
        wanted += [("pipeline", 2), ("pipeline", 3), ("data", 2)]
    results = []
    for strategy, ranks in wanted:
        with tempfile.TemporaryDirectory(prefix="coverage.") as scratch:
            result = measure(model, ranks, Path(scratch), strategy)
            if ranks == 2:
                error = error_of_processes(model, Path(scratch) / "slices")
                result = result.with_error(max(error, result.error))
        results.append(result)
        print(row(name, result), flush=True)
    return results


def error_of_processes(model: zoo.Model, slices: Path) -> float:
    """The largest relative error when every rank is a process; infinite where they fail."""
    try:
        return processes_error(model, slices)
    except ShardrunError as problem:
        print(f"{model.name}: {problem}", file=sys.stderr)
        return float("inf")


def misses(name: str, result: Measured) -> list[str]:
    """The goals that a slicing does not reach."""
    found = []
    if result.error > zoo.tolerance(name):
        found.append("no comparable output" if isinf(result.error) else f"an error of {result.error:.0e}")
    if result.strategy != "tensor":
        return found
    if result.rank_share > 1 / result.ranks + zoo.WEIGHT_SLACK:
        found.append(f"a rank holds {100 * result.rank_share:.1f} % of the weight bytes")
    inside = 0 if zoo.layers(name) is None else inside_and_outside(name, result)[0]
    if inside > zoo.LAYER_COLLECTIVES:
        found.append(f"{inside} collectives a layer")
    return found


def spread(name: str, measured_now: Collection[str]) -> float:
    """How far plain ONNX Runtime is from itself, measured or as the page says."""
    said = re.search(rf"{name} ([0-9]e[+-][0-9]+)[,.]", PAGE.read_text(encoding="utf-8"))
    return float(said[1]) if said and name not in measured_now else own_spread(zoo.get(name))


def page(results: dict[str, list[Measured]], measured_now: Collection[str]) -> str:
    """The whole of docs/coverage.md."""
    spreads = [f"{name} {spread(name, measured_now):.0e}" for name in results if "int8" in name]
    lines = [*HEAD, f"{', '.join(spreads)}.", "", "## What is not at its goal", ""]
    for name, slicings in results.items():
        by_miss: dict[str, list[str]] = {}
        for result in slicings:
            for miss in misses(name, result):
                by_miss.setdefault(miss, []).append(str(result.ranks))
        if by_miss:
            what = "; ".join(f"{miss} ({', '.join(ranks)} ranks)" for miss, ranks in by_miss.items())
            reason = " ".join(REASONS.get(name, "it is not known why.").split())
            lines += [f"**{name}**: {what}: {reason}", ""]
    lines += ["## Slicings", "", *TABLE_HEAD]
    lines += [row(name, result) for name, slicings in results.items() for result in slicings]
    return "\n".join([*lines, "", f"Measured with {versions()}.", ""])


def versions() -> str:
    """The packages that took part, with their versions."""
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:  # one of the two builds of onnxruntime
            continue
    return ", ".join(found)


_OTHER_LAYERS = ", ".join(
    f"{count} in {' and '.join(name for name in zoo.LAYERS if zoo.LAYERS[name] == count)}"
    for count in sorted(set(zoo.LAYERS.values()))
)
HEAD = f"""# Architectures

What `shardrun slice` makes of models as people export them: real configurations with their structure
(heads, gates, normalisations, odd vocabularies), with fewer layers and random weights, exported by
`torch.onnx` with open batch and sequence axes; some of them quantised or fused by ONNX Runtime's own tools,
and {counted(len(generators.BUILDERS), "language model")} written by ONNX Runtime GenAI's builder.
The builders are in `tests/architectures`. Made by

    python scripts/coverage.py

The goals: an error of at most {zoo.FLOAT_TOLERANCE:.0e} (float and 4-bit weights); a rank holds at most
1/N + {100 * zoo.WEIGHT_SLACK:.0f} % of the weight bytes; a transformer layer needs {zoo.LAYER_COLLECTIVES}
collectives, and state (key and value caches) none.

- *split*: the part of the weight bytes of which no rank holds all; *a rank holds*: of all weight bytes, the
  rank that holds most.
- *a layer*: collectives of each transformer layer + those outside of layers (embedding, head). There are
  {zoo.TRANSFORMER_LAYERS} layers, {_OTHER_LAYERS}.
- *bytes*: what a rank puts into the collectives of one inference, for a batch of 2 or 3 rows of 2 to 16
  tokens (images of 32 to 96).
- *state*: bytes that a rank keeps for each further token, of those of all ranks together.
- *error*: the largest relative error (largest difference over largest value) of any output of any rank
  against plain ONNX Runtime on the unsliced model, over two input shapes; on two ranks also with two
  processes.
- *planning*: seconds, from file to plan.
- Pipelines cut the batch into as many micro-batches as stages, data parallelism into as many parts as ranks,
  uneven ones here.

Models in int8 are accepted up to an error of {zoo.INT8_TOLERANCE}: a value beside a rounding boundary moves
by a whole step where sums are added in another order. Plain ONNX Runtime with and without its own
optimisations differs from itself as much:""".splitlines()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(zoo.NAMES)}; default: all")
    names = parser.parse_args().names
    unknown = [name for name in names if name not in zoo.NAMES]
    if unknown:
        parser.error(f"no architecture is called {unknown[0]!r}; there are {', '.join(zoo.NAMES)}")
    zoo.build(names or zoo.NAMES)
    print("\n".join(TABLE_HEAD))
    now = {name: measured(name) for name in names or zoo.NAMES}
    known = {**(read() if PAGE.is_file() else {}), **now}
    PAGE.write_text(page({name: known[name] for name in zoo.NAMES if name in known}, now))
    return 0


if __name__ == "__main__":
    sys.exit(main())
