"""Weights in one copy for several processes, without lists of process ids: `share_weights` and `attach`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, SupportsFloat, SupportsIndex

from ranks.errors import WeightsError
from ranks.lite.model import Model
from ranks.lite.options.check import check_isinstance, identifier, integers
from ranks.lite.options.context import Context
from ranks.lite.options.errors import as_runtime_error
from ranks.lite.options.texts import parse_handle, parse_pids
from ranks.lite.options.types import ModelType
from ranks.weights.shared.handle import check, is_number, unsigned
from ranks.weights.shared.request import Attach, Share
from sharding.common.bounds import LONGEST_TIMEOUT

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir


class SharedModel(Model):
    """A model whose weights several processes use: the owner's, or one that is attached.

    A context manager; leaving it, `close`, or the model's end ends its part. Others keep what they have.
    """

    def __init__(self, request: Share | Attach) -> None:
        super().__init__()
        self._request = request

    @property
    def handle(self) -> int | str:
        """What others give to `attach`: a number that nobody can guess, or the name that was agreed on.

        Raises a `RuntimeError` after `close`.
        """
        built = self._built
        if built is None or built.shared is None:
            raise as_runtime_error("SharedModel failed!", WeightsError("the model is closed."))
        return built.shared.given

    def take(self, model: object, *arguments: object) -> None:
        """Builds from a path, or from a model's bytes or an object that is one."""
        held = isinstance(model, (bytes, bytearray, memoryview)) or hasattr(model, "graph")
        build: Callable[..., None] = self.build_from_buffer if held else self.build_from_file
        build(model, *arguments)

    def close(self) -> None:
        """Frees the model, and lets nobody attach to it any more. Safe to call twice."""
        built, self._built = self._built, None
        if built is not None:
            built.close()

    def __enter__(self) -> SharedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def share_weights(
    model_path: str | bytes | onnx.ModelProto | ir.Model,
    context: Context | None = None,
    *,
    model_type: ModelType = ModelType.ONNX,
    name: str | None = None,
    pids: Iterable[int] = (),
    family: int | None = None,
    config_path: str = "",
    config_dict: dict[str, object] | None = None,
) -> SharedModel:
    """Builds a model as `Model.build_from_file` does, and shares its weights with other processes.

    ``model_path`` may also be the model itself, as `Model.build_from_buffer` takes it.

    This process's descendants may attach, however they were started, and the running processes ``pids``.
    ``family`` is another process that may with its descendants, say the one that starts owner and workers
    alike: this process must descend from it. 0: nobody's descendants.

    ``name`` is a text that owner and others agreed on beforehand, so that they may start in any order;
    without it the model's ``handle`` is a new number.

    Raises `TypeError` for arguments of other types, and a `RuntimeError` that is a `WeightsError` where the
    name is taken, a process does not run, or weights cannot be shared here; and what building raises.
    """
    if name is not None:
        check_isinstance("name", name, str)
    try:
        given = list(pids)
    except TypeError:
        raise TypeError(f"pids must be a list of int, but got {type(pids)}.") from None
    listed = tuple(integers("pids", given, truths=False))
    family = None if family is None else identifier("family", family)
    try:
        if name is not None:
            check(name)
        if listed:
            listed = parse_pids(",".join(map(str, listed)), "pids")
    except WeightsError as error:
        raise as_runtime_error("share_weights failed!", error) from None
    root = os.getpid() if family is None else family or None
    model = SharedModel(Share(listed, "pids", name, root))
    model.take(model_path, model_type, context, config_path, config_dict)
    return model


def attach(
    handle: int | str,
    model_path: str | bytes | onnx.ModelProto | ir.Model,
    context: Context | None = None,
    *,
    model_type: ModelType = ModelType.ONNX,
    timeout: float | None = None,
    config_path: str = "",
    config_dict: dict[str, object] | None = None,
) -> SharedModel:
    """Builds a model as `Model.build_from_file` does, over the weights that another process shares.

    ``handle`` is the owner's, as a number or its digits, or the agreed name. With a name the owner is waited
    for, if it is not there yet or still loads its model: ``timeout`` seconds, by default ``SHARDRUN_TIMEOUT``
    or 300. A number exists no earlier than its owner, so none is waited for; then ``timeout`` is how long it
    may take to answer.

    Raises `TypeError` for arguments of other types, and a `RuntimeError` that is a `WeightsError` where the
    owner is not there, refuses this process, or has weights of another model, device or release of ONNX
    Runtime; and what building raises.
    """
    if not isinstance(handle, str):
        try:
            handle = unsigned(identifier("handle", handle))
        except TypeError:
            raise TypeError(f"handle must be int or str, but got {type(handle)}.") from None
    try:
        given = parse_handle(handle, "handle") if isinstance(handle, str) and is_number(handle) else handle
        check(given)
        seconds = None if timeout is None else _seconds(timeout)
    except WeightsError as error:
        raise as_runtime_error("attach failed!", error) from None
    model = SharedModel(Attach(given, seconds))
    model.take(model_path, model_type, context, config_path, config_dict)
    return model


def _seconds(timeout: object) -> float:
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if (
            isinstance(timeout, (SupportsFloat, SupportsIndex))
            and not isinstance(timeout, bool)
            and 0 <= (seconds := float(timeout)) <= LONGEST_TIMEOUT
        ):
            return seconds
    raise WeightsError(
        f"timeout must be a number of seconds, at most {LONGEST_TIMEOUT:.0f}, but is {timeout!r:.80}."
    )
