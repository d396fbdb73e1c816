"""The main job: a real sentence encoder, sliced for two ranks, under `mpirun -n 2`, on real sentences.

    python -m examples.minilm

Prints every output as the tutorials of MindSpore Lite do, then what slicing did and whether it was right.
"""

import os
import sys
from pathlib import Path
from typing import Any

from examples.minilm.measure import alternate, plain_session
from examples.minilm.text import SENTENCES, tokenize
from examples.minilm.weights import exported_model, weights_folder
from launcher import start
from launcher.common.report import human_bytes, human_seconds, print_outputs, print_table, progress
from launcher.errors import ShardrunError
from launcher.job.cache import sliced
from launcher.job.verify import Comparison, check, compare_outputs
from sharding.slices.manifest import Manifest, read_manifest

RANKS = 2
LAUNCHER = "mpirun"
THREADS = 1


def main() -> None:
    """Run the job; raises `ShardrunError` if anything is missing or the answer is wrong."""
    model = exported_model()
    with progress("slicing") as update:
        folder = sliced(model, RANKS, progress=update)
    manifest = read_manifest(folder)
    feeds = tokenize(SENTENCES, weights_folder())
    with start(folder, ranks=RANKS, launcher=LAUNCHER, threads=THREADS) as group:
        backend = group.stats[0].backend
        outputs = group.predict(feeds)
        # Printed before anything is measured: the answer is what the job is for.
        print_outputs(outputs)
        sys.stdout.flush()
        session = plain_session(model, THREADS)
        names = [output.name for output in session.get_outputs()]
        expected = dict(zip(names, session.run(None, feeds), strict=True))
        seconds = alternate(
            {"group": lambda: group.predict(feeds), "plain": lambda: session.run(None, feeds)},
        )
    comparisons = compare_outputs(outputs, expected)
    print()
    _print_summary(manifest, backend, comparisons, seconds, feeds["input_ids"].shape)
    print()
    _print_similarity(outputs["sentence_embedding"])
    check(comparisons, model)
    print(f"\nok: {RANKS} ranks answer as one process does. The model: {model}")


def _print_summary(
    manifest: Manifest,
    backend: str,
    comparisons: list[Comparison],
    seconds: dict[str, float],
    shape: tuple[int, ...],
) -> None:
    whole = sum(weight.bytes for weight in manifest.weights.values())
    rows = [
        [f"weights held by rank {rank.rank}", f"{human_bytes(rank.weight_bytes)} of {human_bytes(whole)}"]
        for rank in manifest.ranks
    ]
    worst = max(comparison.error for comparison in comparisons)
    tolerance = min(comparison.tolerance for comparison in comparisons)
    rows += [
        ["collectives per inference", f"{len(manifest.collectives)} ({backend})"],
        [f"latency, {RANKS} ranks x {THREADS} thread ({LAUNCHER})", human_seconds(seconds["group"])],
        [f"latency, one process x {THREADS} thread", human_seconds(seconds["plain"])],
        ["largest relative error against ONNX Runtime", f"{worst:.1e} (at most {tolerance:.0e})"],
    ]
    print_table(["MiniLM sentence encoder", f"{shape[0]} sentences x {shape[1]} tokens"], rows, "lr")


def _print_similarity(embeddings: Any) -> None:
    """Cosine of every pair; the vectors have length one already."""
    cosines = embeddings @ embeddings.T
    rows = [
        [str(number), *(f"{value:.2f}" for value in cosines[number - 1]), sentence]
        for number, sentence in enumerate(SENTENCES, 1)
    ]
    columns = ["", *(str(number) for number in range(1, len(SENTENCES) + 1)), "sentence"]
    print_table(columns, rows, "r" * (len(columns) - 1) + "l", title="Similarity of the sentences (cosine)")


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads on (`./run.sh | head`). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except ShardrunError as problem:
        print(f"{Path(__file__).parent.name}: {problem}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
