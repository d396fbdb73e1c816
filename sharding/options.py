"""Options of slicing, for scripts that import them from here. In this package: `sharding.demands.options`."""

from sharding.demands.options import SliceOptions

__all__ = ["SliceOptions"]
