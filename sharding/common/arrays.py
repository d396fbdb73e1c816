"""Types of arrays whose elements are known only once a file or a message has been read.

When the program runs they say nothing: what imports them for annotations does not import numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]
    DType: TypeAlias = np.dtype[Any]
else:
    Array = DType = object
