"""Puts a checkpoint's weights into a ``torch.nn.Module``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from sharding.common.arrays import Array
from sharding.errors import ModelError
from sharding.importers import torch_import
from sharding.importers.checkpoints.base import Checkpoint, cast
from sharding.importers.checkpoints.match import Match, Target, match
from sharding.importers.checkpoints.rename import Rule
from sharding.importers.checkpoints.torch_file import dtype_of
from sharding.importers.networks.factory import Network, described


def targets_of(module: Any) -> dict[str, Target]:
    """What a module's ``state_dict`` has; weights that are one tensor under several names are tied."""
    found = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if not hasattr(tensor, "dtype"):
            continue  # extra state of the module
        dtype = dtype_of(tensor, f"The network's weight {name!r}", "set")
        found[name] = Target(dtype, tuple(tensor.shape), id(tensor))
    return found


def load(network: Network, checkpoint: Checkpoint, rules: Sequence[Rule], **allowed: bool) -> Match:
    """Copies the weights into the module and returns what fitted. Raises `ModelError` (`Match.check`)."""
    torch = torch_import.load()
    module = network.module
    targets = targets_of(module)
    result = match(checkpoint, targets, rules)
    result.check(checkpoint, **allowed)
    state = module.state_dict(keep_vars=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file's bytes cannot be written to, and are only read
        for name, entry in result.found.items():
            try:
                array = entry.array()
                if entry.dtype != targets[name].dtype:
                    array = cast(array, targets[name].dtype, f"The weight {name!r}")
                state[name].copy_(as_tensor(array))
            except (RuntimeError, NotImplementedError) as error:
                raise ModelError(f"The weight {name!r} cannot be set: {described(error)}.") from None
    return result


def as_tensor(array: Array) -> Any:
    """A tensor of an array's elements, without a copy where it can be."""
    torch = torch_import.load()
    shape = array.shape
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(np.ascontiguousarray(array).reshape(shape))
    raw = torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    name = {"float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2"}.get(array.dtype.name, "bfloat16")
    return raw.view(getattr(torch, name)).reshape(shape)
