"""Types of arrays whose elements are known only once a file or a message has been read.

When the program runs they say nothing: what imports them for annotations does not import numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    import numpy as np
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]
    DType: TypeAlias = np.dtype[Any]
    ArrayLike: TypeAlias = npt.ArrayLike
    DTypeLike: TypeAlias = npt.DTypeLike
else:
    Array = DType = ArrayLike = DTypeLike = object
