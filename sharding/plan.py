"""Planning, for scripts that import it from here. In this package: `sharding.planning`."""

from sharding.planning.plan import Plan, plan_model

__all__ = ["Plan", "plan_model"]
