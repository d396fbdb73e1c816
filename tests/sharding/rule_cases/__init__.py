"""Concrete nodes for every operator rule, by operator family."""

from tests.sharding.proof import Case
from tests.sharding.rule_cases import elementwise, indexing, layout, nets, products, shapes

CASES: list[Case] = [
    *elementwise.CASES,
    *indexing.CASES,
    *layout.CASES,
    *nets.CASES,
    *products.CASES,
    *shapes.CASES,
]
