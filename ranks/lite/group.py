"""`ModelGroup`: models of one process that share equal weights, the memory they run in, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from ranks.common.notice import warn_user
from ranks.devices.providers import CPU
from ranks.errors import ShardrunError
from ranks.lite import membership
from ranks.lite.build import is_cut, plan
from ranks.lite.membership import Sharing
from ranks.lite.model import Model
from ranks.lite.options import config
from ranks.lite.options.check import check_isinstance, check_sequence, integers
from ranks.lite.options.content import content_of, is_there, not_there
from ranks.lite.options.context import Context
from ranks.lite.options.errors import as_runtime_error, runtime_error
from ranks.lite.options.types import ModelType
from ranks.models.imported import naming
from sharding.common.encryption import ENCRYPTED

__all__ = ["ModelGroup", "ModelGroupFlag"]


_ADD = "ModelGroup's add model failed."
_CALCULATE = "ModelGroup's cal max size of workspace failed."


class ModelGroupFlag(Enum):
    """What the models of a group share, with mindspore_lite's names and values."""

    SHARE_WEIGHT = 1
    SHARE_WORKSPACE = 2
    SHARE_WEIGHT_WORKSPACE = 3


class ModelGroup:
    """Models that are loaded once where they are alike, and that run in the same memory.

    Of weights: equal ones, by content, of whatever name and model, lie in memory once. Of workspace: one
    arena holds what the models' runs allocate, so that models that run in turn take as much as the largest.
    Models may run at the same time all the same; the arena then holds what they need together.

    Models join before they are built, by their path or as objects; both count from the next
    `Model.build_from_file` on.
    """

    def __init__(self, flags: ModelGroupFlag = ModelGroupFlag.SHARE_WORKSPACE) -> None:
        if not isinstance(flags, ModelGroupFlag):
            raise runtime_error(
                "Parameter flags should be ModelGroupFlag.SHARE_WORKSPACE or ModelGroupFlag.SHARE_WEIGHT or "
                "ModelGroupFlag.kShareWeightAndWorkspace (in Python: SHARE_WEIGHT_WORKSPACE), but got "
                f"{flags!r:.80}."
            )
        self._flags = flags
        self._group = membership.Group(
            Sharing(
                weights=flags is not ModelGroupFlag.SHARE_WORKSPACE,
                workspace=flags is not ModelGroupFlag.SHARE_WEIGHT,
            )
        )
        self._paths: dict[str, str] = {}
        self._workspaces: dict[str, int | None] | None = None

    def __str__(self) -> str:
        return f"flags: {self._flags.name}, paths: {list(self._paths)}."

    def add_model(self, models: Sequence[str] | Sequence[Model]) -> None:
        """Adds models: a list or tuple of paths, or of `Model` objects that are not built yet.

        A path may be all that `Model.build_from_file` takes; it stands for every model that is built from it
        from now on.

        Raises `TypeError` for arguments of another type, and a `RuntimeError` (that is a `ShardrunError` too)
        for an empty list, a file that is not there, a model that is built, one that belongs to another
        group, and after `cal_max_size_of_workspace`. Nothing is added then.
        """
        if not isinstance(models, (list, tuple)):
            raise TypeError(f"models must be list/tuple, but got {type(models)}.")
        if not models:
            raise runtime_error(
                f"{_ADD} models cannot be empty: give paths, or Model objects that are not built."
            )
        kind = str if isinstance(models[0], str) else Model
        for index, element in enumerate(models):
            if not isinstance(element, kind):
                raise TypeError(
                    f"models element must be all str or Model, but got {type(element)} at index {index}."
                )
        if self._workspaces is not None:
            raise runtime_error(
                f"{_ADD} The size of this group's workspace is calculated already: add all models "
                "before cal_max_size_of_workspace."
            )
        objects = [model for model in models if isinstance(model, Model)]
        paths = [path for path in models if isinstance(path, str)]
        for path in paths:
            if not is_there(path):
                raise runtime_error(f"{_ADD} {not_there(path)}")
        for index, model in enumerate(objects):
            if model._built is not None:
                raise runtime_error(
                    f"{_ADD} The model at index {index} is built from {model.model_path_} "
                    "already: add it before build_from_file."
                )
        try:
            membership.enter(self._group, objects, paths)
        except ShardrunError as error:
            raise as_runtime_error(_ADD, error) from None
        for path in paths:
            self._paths.setdefault(membership.key_of(path), path)

    def cal_max_size_of_workspace(
        self,
        model_type: ModelType,
        context: Context,
        *,
        shapes: Mapping[str, Mapping[str, Sequence[int]]] | None = None,
    ) -> None:
        """Measures what the models of the added paths need to run, and reserves what the largest needs.

        Each model is run on zeros in a process of its own. Inputs have the shapes of the file, where open
        dimensions count as 1, or those of ``shapes``: by path, then by the input's name. The sizes are
        `workspaces` and `max_size_of_workspace`. Not measured are a rank's part of a model, which cannot run
        alone, models on other devices than the CPU, and encrypted ones.

        Raises `TypeError` for arguments of another type, and a `RuntimeError` (that is a `ShardrunError` too)
        where the group does not share the workspace, has no paths, or a model cannot be loaded or run.
        """
        check_isinstance("context", context, Context)
        check_isinstance("model_type", model_type, ModelType)
        if not self._group.sharing.workspace:
            raise runtime_error(
                f"{_CALCULATE} This group shares weights only: make it with "
                "ModelGroupFlag.SHARE_WORKSPACE or SHARE_WEIGHT_WORKSPACE."
            )
        if not self._paths:
            raise runtime_error(
                f"{_CALCULATE} No paths were added: a Model object has no file until it "
                "is built, and its workspace grows as it runs."
            )
        given = self._given(shapes)
        try:
            found = {
                path: self._measured(path, model_type, context, given.get(key, {}))
                for key, path in self._paths.items()
            }
        except ShardrunError as error:
            raise as_runtime_error(_CALCULATE, error) from error
        self._workspaces = found
        if self.max_size_of_workspace:
            from ranks.sessions import arena

            if not arena.register(self.max_size_of_workspace):
                warn_user(
                    "This process has its arena already, so no memory is reserved: it grows as the models "
                    "run. Call cal_max_size_of_workspace before building the first model of a group."
                )

    @property
    def workspaces(self) -> dict[str, int | None]:
        """Bytes of workspace by path; None: not measured. Empty before `cal_max_size_of_workspace`."""
        return dict(self._workspaces or {})

    @property
    def max_size_of_workspace(self) -> int:
        """Bytes of the largest model's workspace; 0 before `cal_max_size_of_workspace`."""
        return max((size for size in self.workspaces.values() if size is not None), default=0)

    def _given(self, shapes: object) -> dict[str, dict[str, list[int]]]:
        """``shapes`` by the paths' keys."""
        if shapes is None:
            return {}
        check_isinstance("shapes", shapes, dict)
        assert isinstance(shapes, dict)
        given: dict[str, dict[str, list[int]]] = {}
        for path, inputs in shapes.items():
            check_isinstance("shapes key", path, str)
            check_isinstance(f"shapes[{path!r}]", inputs, dict)
            if membership.key_of(path) not in self._paths:
                raise runtime_error(f"{_CALCULATE} shapes names {path!r}, which was not added.")
            for name, shape in inputs.items():
                check_sequence(f"shapes[{path!r}][{name!r}]", shape, " of int")
                lengths = integers(f"shapes[{path!r}][{name!r}]", shape)
                if any(isinstance(length, bool) for length in shape):
                    raise TypeError(f"shapes[{path!r}][{name!r}] element must be int, but got bool: {shape}.")
                if min(lengths, default=0) < 0:
                    raise ValueError(f"shapes[{path!r}][{name!r}] is negative in a dimension: {lengths}.")
                given.setdefault(membership.key_of(path), {})[name] = lengths
        return given

    def _measured(
        self, path: str, model_type: ModelType, context: Context, shapes: Mapping[str, Sequence[int]]
    ) -> int | None:
        from ranks.lite.workspace import Job, measure
        from ranks.sessions.session import default_threads

        if content_of(path) == ENCRYPTED:
            return None
        recipe = plan(path, model_type, context, config.Options())
        if is_cut(recipe.path) or recipe.placement.providers[0] != CPU:
            return None
        with naming(recipe.path, recipe.given or recipe.path):
            return measure(Job(recipe.path, recipe.threads or default_threads(), shapes))
