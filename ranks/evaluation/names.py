"""The metrics that have names, known before what computes them is imported."""

from __future__ import annotations

from sharding.common.registry import entry_points

OF_CLASSES: dict[str, tuple[str, object]] = {
    "accuracy": ("TopK", 1),
    "precision": ("Confusion", "precision"),
    "recall": ("Confusion", "recall"),
    "f1": ("Confusion", "f1"),
    "cross_entropy": ("CrossEntropy", False),
    "perplexity": ("CrossEntropy", True),
}
"""Name -> class of `ranks.evaluation.metrics` and what it is told, of those whose labels are classes."""
OF_NUMBERS = ("mse", "rmse", "mae", "max_error", "cosine_similarity")
"""Those whose labels are numbers like the predictions."""
GROUP = "shardrun.metrics"
"""The group of entry points by which other packages bring metrics: each names a class with the methods of
`ranks.evaluation.metrics.Metric`, or a function as of `ranks.evaluation.metrics.Function`."""


def of_classes() -> list[str]:
    """The names in `OF_CLASSES` and those that hold a number, for people."""
    first, *others = OF_CLASSES
    return [first, "topK (top1, top5, ...)", *others]


def names() -> list[str]:
    """All names of metrics, for messages."""
    return [*of_classes(), *OF_NUMBERS, *entry_points().get(GROUP, {})]


def in_help() -> str:
    """All names, as help lists them: two lines or three."""
    means = [name for name, (kind, _) in OF_CLASSES.items() if kind == "Confusion"]
    shown = [f"{name} (means over the classes)" if name == means[-1] else name for name in of_classes()]
    kinds = (shown, OF_NUMBERS, entry_points().get(GROUP, {}))
    return ";\n".join(f"  {', '.join(kind)}" for kind in kinds if kind)
