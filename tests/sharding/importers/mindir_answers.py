"""Whether a converted model gives the answers that MindSpore, or torch, gave."""

from __future__ import annotations

import functools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@functools.cache
def archive(path: Path) -> zipfile.ZipFile:
    """Opened once: to list all that is in it takes longer than most networks of it."""
    return zipfile.ZipFile(path)


def assert_same(found: list[Array], wanted: list[Array]) -> None:
    """The same types and shapes, integers exactly, floats to 1e-5 of the largest (float16 2e-3). MindSpore
    gives magnitudes of complex numbers as complex ones."""
    assert len(found) == len(wanted)
    for ours, given in zip(found, wanted, strict=True):
        theirs = given.real if given.dtype.kind == "c" else given
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if theirs.dtype.kind in "biu":
            np.testing.assert_array_equal(ours, theirs)
            continue
        finite = np.isfinite(theirs)
        np.testing.assert_array_equal(ours[~finite], theirs[~finite])
        bound = 2e-3 if theirs.dtype == np.float16 else 1e-5
        scale = max(float(np.abs(theirs[finite]).max(initial=0)), 1e-6)
        assert np.abs(ours[finite].astype(np.float64) - theirs[finite]).max(initial=0) / scale <= bound


def of_torch(reference: Any, inputs: list[Array]) -> list[Array]:
    """The results of a function of torch."""
    import torch

    given = [torch.from_numpy(np.ascontiguousarray(item).reshape(item.shape)) for item in inputs]
    found = reference(*given)
    items = found if isinstance(found, (tuple, list)) else [found]
    return [item.numpy() for item in items]
