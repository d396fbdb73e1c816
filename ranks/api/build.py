"""From a model's path and a context to a model that runs."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ranks.api import config
from ranks.api.content import Content, content_of
from ranks.api.context import Context
from ranks.api.errors import as_runtime_error
from ranks.api.targets import Placement, place, warn_once
from ranks.api.types import DataType, ModelType, from_numpy
from ranks.errors import IdentityError, ModelError, ShardrunError

if TYPE_CHECKING:
    from ranks.executor import RankModel
    from ranks.identity import Identity

MOST_THREADS = 1024

_CONTENT_OF_TYPE: dict[ModelType, Content] = {
    ModelType.MINDIR: "mindir",
    ModelType.MINDIR_LITE: "mindir_lite",
    ModelType.ONNX: "onnx",
}


@dataclass(frozen=True)
class Recipe:
    """What it takes to load the model, and to load it again with other dimensions."""

    path: Path
    placement: Placement
    threads: int | None
    cores: tuple[int, ...]
    identity: Identity | None

    def load(self, dims: Mapping[str, Sequence[int]] | None = None) -> RankModel:
        """Loads the model; ``dims`` are new shapes by input name."""
        from ranks import executor

        with _on_cores(self.cores):
            return executor.load(
                self.path,
                communicator=self._group(),
                threads=self.threads,
                providers=self.placement.providers,
                provider_options=self.placement.options,
                device_id=self.placement.device_id,
                dims=dims,
            )

    def _group(self) -> Any:
        """The group that the script itself named; None leaves it to the environment, where one is needed."""
        if self.identity is None or self.identity.world_size == 1:
            return None
        from ranks import group

        return group.join(self.identity)


class Built:
    """A loaded model with what `Model` needs at hand on every prediction."""

    def __init__(self, recipe: Recipe, model: RankModel) -> None:
        self.recipe = recipe
        self.model = model
        self.run = model.run
        self.inputs = model.inputs
        self.outputs = model.outputs
        self.input_names = tuple(spec.name for spec in model.inputs)
        self.named_outputs: list[tuple[str, DataType]] = [
            (spec.name, from_numpy(spec.dtype)) for spec in model.outputs
        ]
        self.declared: list[tuple[int | None, ...]] = [
            tuple(dim if isinstance(dim, int) else None for dim in spec.shape) for spec in model.inputs
        ]

    def open_shape(self, index: int) -> tuple[int, ...]:
        """The shape of input ``index``, -1 for open dimensions."""
        return tuple(-1 if dim is None else dim for dim in self.declared[index])

    def resized(self, shapes: Sequence[tuple[int, ...]]) -> Built:
        """The model for inputs of these shapes: itself where it takes them already, else loaded anew.

        Raises `ShardrunError` where it cannot take them; ``self`` is as before then.
        """
        if len(shapes) != len(self.inputs):
            raise ShardrunError(
                f"the model has {len(self.inputs)} inputs, but {len(shapes)} shapes were given."
            )
        changed = False
        for spec, declared, shape in zip(self.inputs, self.declared, shapes, strict=True):
            if len(shape) != len(declared):
                raise ShardrunError(
                    f"input {spec.name!r} has {len(declared)} dimensions, but the new shape "
                    f"{list(shape)} has {len(shape)}."
                )
            if min(shape, default=0) < 0:
                raise ShardrunError(
                    f"the new shape {list(shape)} of input {spec.name!r} is negative in a dimension: "
                    "resize needs every length."
                )
            changed |= any(length not in {None, new} for length, new in zip(declared, shape, strict=True))
        if not changed:
            return self
        names = self.input_names
        try:
            model = self.recipe.load(dict(zip(names, shapes, strict=True)))
        except ModelError as error:
            raise ModelError(
                f"the graph does not allow the shapes {_listed(names, shapes)}: {error}"
            ) from error
        resized = Built(self.recipe, model)
        try:
            resized._try(shapes)
        except ShardrunError as error:
            model.close()
            raise ModelError(
                f"the graph does not allow the shapes {_listed(names, shapes)}: {error}"
            ) from error
        except BaseException:
            model.close()
            raise
        return resized

    def _try(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Runs the model on zeros: the only proof that no constant in the graph needs the old shapes."""
        if all(spec.is_tensor and not spec.dtype.hasobject for spec in self.inputs):
            self.run(
                {
                    spec.name: np.zeros(shape, spec.dtype)
                    for spec, shape in zip(self.inputs, shapes, strict=True)
                }
            )

    def info(self, key: str) -> str:
        """`Model.get_model_info`."""
        if key == "input_shape":
            shapes = (self.open_shape(index) for index in range(len(self.inputs)))
            return ";".join(
                f"{name}:{','.join(map(str, shape))}"
                for name, shape in zip(self.input_names, shapes, strict=True)
            )
        if key == "user_info" and self.recipe.path.is_file():
            import onnx

            metadata = onnx.load(self.recipe.path, load_external_data=False).metadata_props
            return json.dumps({entry.key: entry.value for entry in metadata}) if metadata else ""
        return ""

    def close(self) -> None:
        """Frees the model."""
        self.model.close()


def build(path: str, model_type: ModelType, context: Context, config_path: str, config_dict: object) -> Built:
    """Reads the configuration, decides device and group, and loads the model.

    Raises `TypeError` for a ``config_dict`` of other types, else errors that are both `ShardrunError` and
    `RuntimeError`.
    """
    options = config.load(config_path, config_dict)
    try:
        _check_content(Path(path), model_type)
        threads = context.cpu.thread_num or None
        if threads is not None and threads > MOST_THREADS:
            warn_once("threads", f"thread_num {threads} is too many, {os.cpu_count() or 1} are used.")
            threads = os.cpu_count() or 1
        recipe = Recipe(
            Path(path),
            place(context, options.engine_cache),
            threads,
            tuple(context.cpu.thread_affinity_core_list),
            _explicit_identity(context, options.rank_table_file),
        )
        return Built(recipe, recipe.load())
    except ShardrunError as error:
        raise as_runtime_error("build_from_file failed!", error) from error


def _check_content(path: Path, model_type: ModelType) -> None:
    """Refuses what cannot be read; warns of a type that the content is not, except ONNX under `MINDIR`.

    mindspore_lite scripts have no other type to give, so for them that is no mistake.
    """
    content = content_of(path)
    if content in {"mindir", "mindir_lite"}:
        title = "a MindIR file" if content == "mindir" else "a MindSpore Lite file (.ms)"
        raise ModelError(
            f"{path} is {title}, which cannot be read yet: export the model to ONNX, "
            "for example with mindspore.export(..., file_format='ONNX')."
        )
    if content == "onnx" and model_type is ModelType.MINDIR_LITE:
        warn_once(f"type:{path}", f"{path} is read as ONNX, which it is, and not as {model_type}.")


def _explicit_identity(context: Context, rank_table_file: str) -> Identity | None:
    """Who the script says this process is, by rank table and `context.ascend`, where no launcher says it."""
    from ranks.identity import identify

    rank, device = context.ascend.chosen
    here = identify()
    if here.source != "single":
        if rank is not None and rank != here.rank:
            raise IdentityError(
                f"context.ascend.rank_id is {rank}, but this process was started as rank {here.rank} "
                f"(from {here.source}): take the rank from the launcher, or start the process without one."
            )
        return None
    if not rank_table_file:
        return None
    if rank is None and device is None:
        raise IdentityError(
            f"rank_table_file is {rank_table_file}, but nothing says which of its ranks this process is: "
            "set context.ascend.rank_id."
        )
    from ranks.rank_file import identity_from_table

    if "\0" in rank_table_file:
        raise IdentityError("rank_table_file holds a zero byte, which no path can.")
    return identity_from_table(rank_table_file, rank, device)


@contextlib.contextmanager
def _on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Threads made inside may use ``cores`` only: threads inherit the affinity of their maker."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    if not before.issuperset(cores):
        warn_once(
            f"cores:{cores}",
            f"thread_affinity_core_list {list(cores)} is not applied: this process may use the cores "
            f"{sorted(before)}.",
        )
        yield
        return
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _listed(names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(f"{name!r} {list(shape)}" for name, shape in zip(names, shapes, strict=True))
