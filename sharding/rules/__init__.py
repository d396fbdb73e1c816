"""Operator rules, one module per operator family; importing this package registers them all in ``RULES``."""

from sharding.rules.base import RULES as RULES
