"""Operator rules, one module per operator family; importing this package registers them all in ``RULES``.

Entry points of the group ``shardrun.rules`` name modules of other packages that register more.
"""

import importlib

from sharding.common.registry import Names, load
from sharding.rules.base import RULES as RULES

FAMILIES = Names("sharding/rules", "shardrun.rules")

for _name in FAMILIES.own:
    importlib.import_module(f"sharding.rules.{_name}")
for _name, _place in FAMILIES.others.items():
    load(_place, _name, FAMILIES.group)
