"""Element types by the names that ONNX Runtime and manifests give them."""

from __future__ import annotations

from typing import cast

import numpy as np

from launcher.errors import ConfigError
from sharding.common.arrays import DType


def numpy_dtype(name: object, what: str = "tensor") -> DType:
    """The numpy type of an ONNX element type's name; bfloat16 and the 8-bit floats are those of ml_dtypes."""
    if isinstance(name, np.dtype):
        return name
    if name == "string":
        return np.dtype(object)
    found: DType
    try:
        found = np.dtype(cast("str", name))
    except TypeError:
        pass
    else:
        return found
    import ml_dtypes

    # ONNX writes float8e4m3fn, ml_dtypes float8_e4m3fn.
    spelled = str(name).replace("float8e", "float8_e").replace("float4e", "float4_e")
    try:
        found = np.dtype(getattr(ml_dtypes, spelled))
    except (AttributeError, TypeError):
        raise ConfigError(f"{what}: the element type {name!r} is not known to numpy or ml_dtypes") from None
    return found
