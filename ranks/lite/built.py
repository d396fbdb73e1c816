"""A loaded model as `Model` holds it: with what a prediction needs at hand, and able to change its shapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ranks.errors import ModelError, ShardrunError
from ranks.lite.options.types import DataType, from_numpy
from ranks.lite.tensor import ANY_RANK

if TYPE_CHECKING:
    from ranks.cache.locks import Pin
    from ranks.run.rank_model import RankModel
    from ranks.weights.shared.sharing import SharedWeights

Dims = Mapping[str, Sequence[int | str | None]]
Loader = Callable[[Dims | None], "RankModel"]
"""Loads the model, with other dimensions than the file's by input name."""


class Built:
    """A loaded model with what `Model` needs at hand on every prediction."""

    kept: Sequence[Pin] = ()
    """What it is loaded from, held in the cache: `resized` loads it again."""

    def __init__(
        self,
        load: Loader,
        model: RankModel,
        in_file: list[tuple[int | None, ...]] | None = None,
        shared: SharedWeights | None = None,
    ) -> None:
        self._load = load
        self.shared = shared
        """Set for a model that shares its weights, or is attached to another process's."""
        self.model = model
        self.run = model.run
        self.inputs = model.inputs
        self.outputs = model.outputs
        self.input_names = tuple(spec.name for spec in model.inputs)
        self.named_outputs: list[tuple[str, DataType]] = [
            (spec.name, from_numpy(spec.dtype)) for spec in model.outputs
        ]
        self.declared: list[tuple[int | None, ...]] = [
            ANY_RANK if spec.open_rank else tuple(dim if isinstance(dim, int) else None for dim in spec.shape)
            for spec in model.inputs
        ]
        self.axes = [None if declared == ANY_RANK else len(declared) for declared in self.declared]
        self.in_file = in_file or self.declared  # the inputs' shapes as the model file gives them
        self.proven: set[tuple[tuple[int, ...], ...]] = set()

    def open_shape(self, index: int) -> tuple[int, ...]:
        """The shape of input ``index``, -1 for open dimensions."""
        return tuple(-1 if dim is None else dim for dim in self.declared[index])

    def resized(self, shapes: Sequence[tuple[int, ...]]) -> Built:
        """The model for inputs of these shapes: itself where it takes them, else loaded anew.

        Dimensions that the file fixes and that change are open from then on, so that this loads once only.
        Raises `ShardrunError` where the model cannot take the shapes; ``self`` is as before then.
        """
        self._check_shapes(shapes)
        asked = f"the shapes {_listed(self.input_names, shapes)}"
        model = self
        try:
            if any(_differ(declared, shape) for declared, shape in zip(self.declared, shapes, strict=True)):
                dims = {
                    spec.name: [
                        dim if not isinstance(dim, int) or dim == length else f"{spec.name}_{axis}"
                        for axis, (dim, length) in enumerate(zip(spec.shape, shape, strict=True))
                    ]
                    for spec, shape in zip(self.inputs, shapes, strict=True)
                    if not spec.open_rank
                }
                model = Built(self._load, self._load(dims), self.in_file)
                model.kept = self.kept
                model.model.share_weights_of(self.model)
            if any(_differ(fixed, shape) for fixed, shape in zip(self.in_file, shapes, strict=True)):
                model._prove(shapes)
        except BaseException as error:
            if model is not self:
                model.close()
            if type(error) is ModelError:
                raise ModelError(f"the graph does not allow {asked}: {error}") from error
            raise
        if model is not self:
            model.shared, self.shared = self.shared, None
        return model

    def _check_shapes(self, shapes: Sequence[tuple[int, ...]]) -> None:
        if len(shapes) != len(self.inputs):
            raise ShardrunError(
                f"the model has {len(self.inputs)} inputs, but {len(shapes)} shapes were given."
            )
        for spec, declared, shape in zip(self.inputs, self.declared, shapes, strict=True):
            if declared != ANY_RANK and len(shape) != len(declared):
                raise ShardrunError(
                    f"input {spec.name!r} has {len(declared)} dimensions, but the new shape "
                    f"{list(shape)} has {len(shape)}."
                )
            if min(shape, default=0) < 0:
                raise ShardrunError(
                    f"the new shape {list(shape)} of input {spec.name!r} is negative in a dimension: "
                    "resize needs every length."
                )

    def _prove(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Runs the model on zeros: the only proof that no constant in the graph needs the file's shapes."""
        key = tuple(shapes)
        if key in self.proven:
            return
        if all(spec.is_tensor and not spec.dtype.hasobject for spec in self.inputs):
            try:
                zeros = [np.zeros(shape, spec.dtype) for spec, shape in zip(self.inputs, shapes, strict=True)]
            except (MemoryError, ValueError):
                raise ModelError("inputs of this size do not fit into memory.") from None
            self.run(dict(zip(self.input_names, zeros, strict=True)))
        self.proven.add(key)

    def info(self, key: str) -> str:
        """`Model.get_model_info`."""
        if key == "input_shape":
            shapes = (self.open_shape(index) for index in range(len(self.inputs)))
            return ";".join(
                f"{name}:{','.join(map(str, shape))}"
                for name, shape in zip(self.input_names, shapes, strict=True)
            )
        if key == "user_info" and self.model.path.is_file():
            import onnx

            metadata = onnx.load(self.model.path, load_external_data=False).metadata_props
            return json.dumps({entry.key: entry.value for entry in metadata}) if metadata else ""
        if key == "weights_version" and self.model.weights is not None:
            return str(self.model.weights.version)
        if key == "shareable_weight_mem_handle" and self.shared is not None:
            return str(self.shared.given)
        return ""

    def close(self) -> None:
        """Frees the model, and ends its part in shared weights."""
        self.model.close()
        self.kept = ()
        shared, self.shared = self.shared, None
        if shared is not None:
            shared.close()


def _differ(fixed: Sequence[int | None], shape: Sequence[int]) -> bool:
    if fixed == ANY_RANK:
        return False
    return any(length not in {None, new} for length, new in zip(fixed, shape, strict=True))


def _listed(names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(f"{name!r} {list(shape)}" for name, shape in zip(names, shapes, strict=True))
