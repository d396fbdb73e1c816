"""The evaluation of a model that `ranks.Model` holds."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ranks.common.notice import warn_user
from ranks.common.progress import progress
from ranks.evaluation.evaluate import Options, evaluate, odd

if TYPE_CHECKING:
    from ranks.evaluation.metrics import Wanted
    from ranks.lite.built import Built


def evaluated(
    built: Built, data: str | os.PathLike[str] | Iterable[object], metrics: Wanted, options: Options
) -> dict[str, object]:
    """`ranks.Model.eval`; warns of what the values alone do not say."""
    names = [spec.name for spec in built.outputs]
    with progress("evaluating") as update:
        report = evaluate(
            lambda feeds: dict(zip(names, built.run(feeds), strict=True)),
            built.inputs,
            built.outputs,
            data,
            metrics,
            options,
            optional=built.model.optional_inputs,
            progress=update,
        )
    for note in odd(report):
        warn_user(note)
    return report.values
