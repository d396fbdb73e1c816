"""Planning, for scripts that import it from here. In this package: `sharding.planning`."""

from sharding import plan_model
from sharding.planning.plan import Plan

__all__ = ["Plan", "plan_model"]
