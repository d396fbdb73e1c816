# ruff: noqa: RUF009 - the fields are what the table is made of
"""How a model is served, besides how its ranks are started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.job.option_table import described, table
from launcher.job.values import File, Number, Several, Text, Whole

MODELS = "how models are served"


@dataclass(frozen=True)
class ModelOptions:
    """How one model is served."""

    texts: Path | None = described(
        File("the path of a folder"), MODELS,
        "the folder with tokenizer and configuration, of a language model that is a single file or slices",
        "FOLDER",
    )  # fmt: skip
    max_batch_size: int = described(
        Whole(1, 4096), MODELS,
        "join requests that differ in the batch alone, up to so many rows (default: 1, none)", "N", default=1,
    )  # fmt: skip
    max_delay: float = described(
        Number(0, 10), MODELS, "seconds that a request waits for others to join (default: 0)", "SECONDS",
        default=0.0,
    )  # fmt: skip
    pad_mask: str | None = described(
        Text("the name of an input"), MODELS,
        "join requests of different lengths, too: shorter ones are filled up, as this input says", "NAME",
    )  # fmt: skip
    variable_weights: Sequence[str] = described(
        Several(Text("the name of a weight"), "a list of names of weights"), MODELS,
        "a weight that may be replaced while the model is served, or a pattern such as *.bias; repeatable",
        "NAME", default=(),
    )  # fmt: skip
    weights_from: Path | None = described(
        File("the path of a folder"), MODELS,
        "the folder of the files that an admin may name as new weights (default: none, they are sent)",
        "FOLDER",
    )  # fmt: skip
    versions: Path | None = described(
        File("a path with {} for the number of a version"), MODELS,
        "where other versions of the model lie, such as bert/{}.onnx, which an admin may have loaded", "PATH",
    )  # fmt: skip


SERVED = table(ModelOptions)
"""Option by name."""
