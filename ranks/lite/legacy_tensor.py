"""The getters and setters that tensors had before they had properties (mindspore_lite 1.8 to 2.0 alpha)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ranks.common.notice import deprecated
from ranks.lite.options.check import check_isinstance, list_of_integers
from ranks.lite.options.types import DataType, Format


class LegacyTensorMethods:
    """Deprecated names of `Tensor`'s properties; each works and warns."""

    if TYPE_CHECKING:
        name: str
        dtype: DataType
        shape: Sequence[int]
        format: Format

        @property
        def element_num(self) -> int: ...

        @property
        def data_size(self) -> int: ...

    def get_tensor_name(self) -> str:
        """Deprecated: the property ``name``."""
        deprecated("get_tensor_name()", "name")
        return self.name

    def set_tensor_name(self, tensor_name: str) -> None:
        """Deprecated: the property ``name``."""
        deprecated("set_tensor_name()", "name")
        check_isinstance("tensor_name", tensor_name, str)
        self.name = tensor_name

    def get_data_type(self) -> DataType:
        """Deprecated: the property ``dtype``."""
        deprecated("get_data_type()", "dtype")
        return self.dtype

    def set_data_type(self, data_type: DataType) -> None:
        """Deprecated: the property ``dtype``."""
        deprecated("set_data_type()", "dtype")
        check_isinstance("data_type", data_type, DataType)
        self.dtype = data_type

    def get_shape(self) -> list[int]:
        """Deprecated: the property ``shape``."""
        deprecated("get_shape()", "shape")
        return list(self.shape)

    def set_shape(self, shape: list[int]) -> None:
        """Deprecated: the property ``shape``."""
        deprecated("set_shape()", "shape")
        self.shape = list_of_integers("shape", shape)

    def get_format(self) -> Format:
        """Deprecated: the property ``format``."""
        deprecated("get_format()", "format")
        return self.format

    def set_format(self, tensor_format: Format) -> None:
        """Deprecated: the property ``format``."""
        deprecated("set_format()", "format")
        check_isinstance("tensor_format", tensor_format, Format)
        self.format = tensor_format

    def get_element_num(self) -> int:
        """Deprecated: the property ``element_num``."""
        deprecated("get_element_num()", "element_num")
        return self.element_num

    def get_data_size(self) -> int:
        """Deprecated: the property ``data_size``."""
        deprecated("get_data_size()", "data_size")
        return self.data_size
