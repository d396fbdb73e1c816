"""`Model`: one model, or this rank's shard of one, ready to run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from ranks.common.notice import deprecated
from ranks.errors import ModelError, ShardrunError
from ranks.lite import membership
from ranks.lite.arguments import checked_outputs, in_shape, length, named, one_by_one, shapes_of
from ranks.lite.build import build
from ranks.lite.built import Built
from ranks.lite.one_process import OneProcess
from ranks.lite.options.check import check_elements, check_isinstance, check_sequence, decryption_key, integer
from ranks.lite.options.content import is_there, not_there
from ranks.lite.options.context import Context
from ranks.lite.options.errors import as_runtime_error, runtime_error
from ranks.lite.options.types import ModelType, from_numpy
from ranks.lite.tensor import (
    NO_TENSOR,
    OutputTensor,
    Tensor,
    TensorMeta,
    as_kept,
    fill,
    input_tensor,
    misfit,
    result_tensor,
)
from ranks.lite.update import checked, parse
from ranks.models.imported import naming
from ranks.weights.shared.request import Attach, Share
from sharding.common.encryption import MODES
from sharding.onnx_files.given import GivenModel

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from ranks.evaluation.metrics import Wanted
    from ranks.state.session import Session
    from ranks.weights.updated.values import Given
    from sharding.common.arrays import Array

    Data: TypeAlias = Tensor | Array

__all__ = ["Model", "ModelType"]


class Model(OneProcess):
    """A model for inference: build it from a file, give it tensors, get tensors.

    Built from a rank model or a slice folder inside a started rank, it is this rank's part of the group's
    model, and every rank makes the same calls.
    """

    _request: Share | Attach | None = None
    """What to share or attach to, where the configuration does not say it (`ranks.lite.shared`)."""

    def __init__(self) -> None:
        self.model_path_ = ""
        self._built: Built | None = None
        self._given: GivenModel | None = None
        self._shapes: list[tuple[int, ...]] = []
        self._inputs: list[Tensor] = []

    @classmethod
    def over(cls, built: Built) -> Model:
        """A model that is loaded already."""
        model = cls()
        model._adopt(built)
        return model

    def _adopt(self, built: Built) -> None:
        self._built = built
        self._shapes = [built.open_shape(index) for index in range(len(built.inputs))]
        self._inputs = self.new_inputs()

    def __str__(self) -> str:
        return f"model_path: {self.model_path_}."

    def build_from_file(  # noqa: PLR0917 - the signature is the contract
        self,
        model_path: str,
        model_type: ModelType,
        context: Context | None = None,
        config_path: str = "",
        config_dict: dict[str, dict[str, str]] | None = None,
        dec_key: bytes | None = None,
        dec_mode: str = MODES[0],
        dec_num_parallel: int = 0,
    ) -> None:
        """Loads a model: an ONNX or MindIR file, a rank model, a slice folder, or this rank's of
        ``rank_{}_m.onnx``.

        The file's content decides its format; ``model_type`` says what the script expects. ``dec_key`` and
        ``dec_mode`` are of an encrypted MindIR file. ``context``
        defaults to the CPU. ``config_path`` and ``config_dict`` are as `ranks.lite.options.config` says; the
        dictionary wins.

        Raises `TypeError` for arguments of another type, and a `RuntimeError` (that is a `ShardrunError` too)
        where the model or the configuration cannot be read, the device cannot be served, or the group does
        not form. A model that was built before then stays usable.
        """
        check_isinstance("model_path", model_path, str)
        check_isinstance("model_type", model_type, ModelType)
        context = Context() if context is None else context
        check_isinstance("context", context, Context)
        check_isinstance("config_path", config_path, str)
        if not is_there(model_path):
            raise runtime_error(
                f"build_from_file failed, model_path does not exist! {not_there(model_path)}", ModelError
            )
        key = decryption_key(dec_key, dec_mode)
        if key is not None:
            integer("dec_num_parallel", dec_num_parallel)
        sharing = membership.of(self, model_path)
        built = build(
            model_path, model_type, context, config_path, config_dict, sharing, request=self._request, key=key
        )
        previous, self.model_path_ = self._built, model_path
        self._adopt(built)
        if previous is not None:
            previous.close()

    def build_from_buffer(  # noqa: PLR0917 - as of `build_from_file`
        self,
        model: bytes | onnx.ModelProto | ir.Model,
        model_type: ModelType,
        context: Context | None = None,
        config_path: str = "",
        config_dict: dict[str, dict[str, str]] | None = None,
        dec_key: bytes | None = None,
        dec_mode: str = MODES[0],
    ) -> None:
        """As `build_from_file`, of a model's bytes (ONNX or MindIR), an `onnx.ModelProto` or an
        `onnx_ir.Model`. It lies in a temporary file while this object uses it."""
        given = GivenModel(model)
        try:
            with naming(given.path, Path("the given model")):
                self.build_from_file(
                    str(given.path), model_type, context, config_path, config_dict, dec_key, dec_mode
                )
        except BaseException:
            given.close()
            raise
        self._given = given  # to load it again with other dimensions

    def get_inputs(self) -> list[Tensor]:
        """New tensors for the inputs, in order, with their names, types and present shapes (-1: open).

        A name, type, shape or format that is set on one is seen on those of later calls; data is not.
        """
        return [as_kept(kept) for kept in self._inputs]

    def new_inputs(self) -> list[Tensor]:
        """As `get_inputs`, but as the model itself has them, and each for its caller alone."""
        if self._built is None:
            return []
        return [
            input_tensor(spec.name, from_numpy(spec.dtype), shape, declared)
            for spec, shape, declared in zip(
                self._built.inputs, self._shapes, self._built.declared, strict=True
            )
        ]

    def get_outputs(self) -> list[TensorMeta]:
        """What the model's outputs are, in order (-1: known after a prediction only).

        The list may be given to `predict` as its ``outputs``.
        """
        if self._built is None:
            return []
        return [
            OutputTensor(spec.name, from_numpy(spec.dtype), tuple(length(dim) for dim in spec.shape))
            for spec in self._built.outputs
        ]

    def predict(
        self,
        inputs: Sequence[Data] | Data,
        outputs: Sequence[TensorMeta] | Data | None = None,
        *further: Data,
    ) -> list[Tensor]:
        """Runs the model on ``inputs`` (tensors or arrays, in order) and returns its outputs.

        Inputs may also be given one by one, ``predict(a, b)``, as MindSpore's Model takes them. The outputs
        are the caller's: a later prediction does not change them. ``outputs``, from `get_outputs` or with
        arrays of the caller's own, are filled and returned instead of new tensors. What is no tensor (a
        sequence, a map) goes in and comes out as a list or dict, as ONNX Runtime has it.

        Raises `TypeError` for arguments of another type, and a `RuntimeError` (a `ShardrunError` too) where
        the model was not built, an input or an array given for an output does not fit, or inference fails.
        """
        if type(inputs) is not list:
            inputs, outputs = one_by_one(inputs, outputs, further)
            check_sequence("inputs", inputs)
        assert isinstance(inputs, (list, tuple))
        built = self._built
        if built is None:
            check_elements("inputs", inputs, (Tensor, np.ndarray))
            raise runtime_error(
                "predict failed! Error is the model is not built: call build_from_file first (model input "
                f"len:0 not equal input len:{len(inputs)}!)."
            )
        names = built.input_names
        if len(inputs) != len(names):
            raise runtime_error(
                f"model input len:{len(names)} not equal input len:{len(inputs)}! predict failed! Error is "
                f"the model's inputs are {', '.join(map(repr, names)) or 'none'}."
            )
        feeds = {}
        for index, given in enumerate(inputs):
            if isinstance(given, Tensor):
                array = self._zeros(index, given) if given._array is None else given._array
                if (axes := built.axes[index]) is not None and array.ndim != axes:
                    array = in_shape(array, self._shapes[index])
                feeds[names[index]] = array
            elif isinstance(given, np.ndarray) or not built.inputs[index].is_tensor:
                feeds[names[index]] = given
            else:
                raise TypeError(f"inputs element must be Tensor, but got {type(given)} at index {index}.")
        places = None if outputs is None else checked_outputs(outputs, len(built.outputs))
        try:
            results = built.run(feeds)
        except ShardrunError as error:
            raise as_runtime_error("predict failed!", error) from error
        if places is None:
            return [
                result_tensor(*named, array) if type(array) is np.ndarray else cast("Tensor", array)
                for named, array in zip(built.named_outputs, results, strict=True)
            ]
        # Only now, since the other ranks of a group wait for this one; and before any is written to.
        for (name, _), output, array in zip(built.named_outputs, places, results, strict=True):
            wrong = misfit(output, array) if type(array) is np.ndarray else NO_TENSOR
            if wrong is not None:
                raise runtime_error(f"predict failed! Error is Output {name!r} {wrong}")
        for output, result in zip(places, results, strict=True):
            fill(output, result)
        return places

    def session(self) -> Session:
        """A sequence of a model with state (caches of keys and values, recurrent states): it is kept from one
        step to the next, and `Session.predict` is given only what is new, by name.

        On ranks every rank makes the same calls. Raises a `RuntimeError` (that is a `ShardrunError` too)
        where the model was not built or has no state.
        """
        built = self._built
        if built is None:
            raise runtime_error(
                "session failed! Error is the model is not built: call build_from_file first."
            )
        try:
            return built.model.session()
        except ShardrunError as error:
            raise as_runtime_error("session failed!", error) from error

    def _zeros(self, index: int, tensor: Tensor) -> Array:
        if min(tensor.shape, default=0) < 0:
            raise runtime_error(
                f"predict failed! Error is input {tensor.name!r} has no data and its shape {tensor.shape} "
                "is open: set data, or call resize."
            )
        return tensor.get_data_to_numpy()

    def update_weights(self, weights: Sequence[Sequence[Tensor]]) -> None:
        """Replaces variable weights, all at once: a `predict` sees all old or all new values.

        ``weights`` has one list, of tensors with the names of weights that the configuration made variable
        (`ranks.lite.options.variable_options`), and with their types and shapes; where it made one variable,
        the name may be left out. A pair of tensors ``NAME@A`` and
        ``NAME@B`` makes the weight NAME its base + A @ B, where the base is the value of the file or of the
        last whole update. The values are copied. On ranks every rank makes the call; either rank 0 gives the
        whole weights and the others give ``[]``, or all give the same.

        Raises `TypeError` for arguments of another type, and a `RuntimeError` (that is a `WeightsError` too)
        where the model was not built, a name, type or shape does not fit, or another rank refuses. Nothing
        has changed then, on any rank.
        """
        failed = "update weight failed!"
        built = self._built
        if built is None:
            checked(weights)
            raise runtime_error(
                f"{failed} Error is Session is null, please build model first! Call build_from_file."
            )
        given: Given | Exception
        try:
            given = parse(weights if weights is not None else [], built.model.variable_names)
        except (TypeError, ShardrunError) as error:
            given = error  # other ranks wait for what this one says
        try:
            with naming(built.model.path, built.model.given):
                built.model.update_weights(given)
        except ShardrunError as error:
            raise as_runtime_error(failed, error) from error

    def eval(
        self,
        data: str | os.PathLike[str] | Iterable[object],
        metrics: Wanted | None = None,
        *,
        batch_size: int | None = None,
        label: str | None = None,
        rename: Mapping[str, str] | None = None,
        prediction: str | None = None,
        ignore_label: int | None = None,
        dataset_sink_mode: bool = False,
    ) -> dict[str, object]:
        """Runs the model over labelled data and returns the metrics by name.

        ``data``: an ``.npz`` file, a folder of ``.npz`` or ``.npy`` files, or an iterable of
        (inputs, labels). ``metrics``: a name or several, functions of (prediction, labels), or a mapping.
        `ranks.evaluation.evaluate.evaluate` has what the other arguments mean. ``dataset_sink_mode`` is
        MindSpore's, which sends whole data sets to a device; here batches go to the model one by one. A
        progress bar shows on a terminal. In a group every rank makes the same call.

        Raises `TypeError` for arguments of another type, `ValueError` without metrics, and a `RuntimeError`
        (that is a `ShardrunError` too) where the model was not built, or data, labels and metrics do not fit.
        """
        from ranks.evaluation.evaluate import Options
        from ranks.lite.evaluated import evaluated

        check_isinstance("dataset_sink_mode", dataset_sink_mode, bool)
        if metrics is None:
            raise ValueError(
                "For Model.eval, the argument 'metrics' can not be None or empty: name what to measure, as "
                "model.eval(data, 'accuracy') does."
            )
        built = self._built
        if built is None:
            raise runtime_error("eval failed! Error is the model is not built: call build_from_file first.")
        try:
            return evaluated(
                built, data, metrics, Options(label, rename, batch_size, prediction, ignore_label)
            )
        except ShardrunError as error:
            raise as_runtime_error("eval failed!", error) from error

    def resize(self, inputs: Sequence[Tensor], dims: Sequence[Sequence[int]]) -> None:
        """Gives the inputs new shapes: ``dims`` has one for each of the model's inputs, in order.

        Also dimensions that the file fixes may change, as long as the graph does not need them fixed: the
        model is then loaded again. On a rank, all ranks make the same call.

        Raises `TypeError` for arguments of another type, `ValueError` where their numbers differ, and a
        `RuntimeError` where the model cannot take these shapes; it then stays as it was.
        """
        check_sequence("inputs", inputs, " of Lite Tensor")
        check_sequence("dims", dims, " of shape")
        check_elements("inputs", inputs, Tensor)
        shapes = shapes_of(dims)
        if len(inputs) != len(dims):
            raise ValueError(
                f"inputs' size does not match dims' size, but got "
                f"inputs: {len(inputs)} and dims: {len(dims)}."
            )
        built = self._built
        if built is None:
            raise runtime_error("resize failed! Error is the model is not built: call build_from_file first.")
        try:
            resized = built.resized(shapes)
        except ShardrunError as error:
            raise as_runtime_error("resize failed!", error) from error
        if resized is not built:
            self._built = resized
            built.close()
        self._shapes = shapes
        for given in (inputs, self._inputs):
            for tensor, shape, declared in zip(given, shapes, resized.declared, strict=True):
                tensor._declared = declared
                tensor.take_shape(shape)

    def get_model_info(self, key: str) -> str:
        """Text about the model: "input_shape" as ``name:1,3,-1;...`` (-1: open), "user_info" the ONNX file's
        metadata as JSON, "shareable_weight_mem_handle" the handle for others of a model that shares its
        weights, and, before the model is built too, "current_pid" this process's id; else ""."""
        if not isinstance(key, str):
            raise TypeError(
                f"get_model_info(): incompatible function arguments. key must be str, but got {type(key)}."
            )
        if key == "current_pid":
            return str(os.getpid())
        return "" if self._built is None else self._built.info(key)

    def get_input_by_tensor_name(self, tensor_name: str) -> Tensor:
        """Deprecated: pick from `get_inputs`."""
        deprecated("get_input_by_tensor_name()", "get_inputs()")
        return named(self.get_inputs(), "input", tensor_name)

    def get_output_by_tensor_name(self, tensor_name: str) -> TensorMeta:
        """Deprecated: pick from `get_outputs`."""
        deprecated("get_output_by_tensor_name()", "get_outputs()")
        return named(self.get_outputs(), "output", tensor_name)
