"""Every operator rule is proved: each option is run on 2, 3 and 4 ranks and compared with the whole.
None may be lost either: that would split less, with right answers."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import onnxruntime
import pytest

import sharding.rules
from sharding.rules import RULES
from tests.sharding.graphs import Array
from tests.sharding.proof import Case, Const, compare, kind, options_of, prove, runnable, whole, write
from tests.sharding.rule_cases import CASES, EXTRA_BY_DOMAIN
from tests.sharding.rule_cases import EXTRA as FAMILY_EXTRA
from tests.sharding.rule_cases.offered import OFFERED

WORLDS = (2, 3, 4, 5, 7)
"""5 and 7 too: the cases have axes of such lengths, which no ordinary number of ranks divides."""

LINE_WORLDS = (2, 4)
"""These are enough to run each line."""

PARTIAL = frozenset({"partial->partial"})
BLOCKS = frozenset({"blocks->blocks"})
SUMMING = frozenset({"split->partial", "blocks->partial"})

EXTRA: dict[str, Set[str]] = {
    # Linear operators pass summands on.
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Sum", "Where", "Identity", "Neg", "Cast", "Dropout"), PARTIAL
    ),
    **dict.fromkeys(
        ("Pad", "AveragePool", "GlobalAveragePool", "BatchNormalization", "GridSample", "CumSum", "Trilu"),
        PARTIAL,
    ),
    **dict.fromkeys(("Transpose", "Squeeze", "Unsqueeze", "GatherElements", "GatherND"), PARTIAL | BLOCKS),
    # Contractions make summands.
    **dict.fromkeys(("MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose"), SUMMING | BLOCKS),
    "FusedMatMul": {"split->partial"},
    **dict.fromkeys(("ReduceSum", "ReduceMean"), SUMMING | PARTIAL),
    **dict.fromkeys(("ReduceL1", "ReduceSumSquare"), SUMMING),
    "Gather": {"split->partial"} | PARTIAL | BLOCKS,
    # Joining and cutting make blocks and take them.
    "Concat": {"split->blocks"} | BLOCKS | PARTIAL,
    "Tile": {"split->blocks"} | BLOCKS | PARTIAL,
    "Split": {"blocks->split"} | BLOCKS | PARTIAL,
    "Slice": {"blocks->split"} | BLOCKS | PARTIAL,
    "Reshape": {"blocks->split", "split->blocks"} | BLOCKS | PARTIAL,
    "Flatten": {"split->blocks"} | PARTIAL,
    "DepthToSpace": {"blocks->split"} | PARTIAL,
    "SpaceToDepth": {"split->blocks"} | PARTIAL,
    "Expand": {"whole->split", "whole->blocks"} | PARTIAL,
    # A shape is known to all ranks, whatever of the value they hold.
    "Shape": {"blocks->whole", "partial->whole", "split->whole"},
    "Size": {"partial->whole", "split->whole"},
    **FAMILY_EXTRA,
}
"""The kinds of options that must have been run, besides split->split."""


ONLY_OTHERWISE = ("Back", "Shape", "Size", "PackedAttention", "PackedMultiHeadAttention")
"""Operators without options of the kind split->split."""


def _by_operator() -> dict[tuple[str, str], list[Case]]:
    cases: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in CASES:
        cases[case.domain, case.op_type].append(case)
    return cases


BY_OPERATOR = _by_operator()
NUMBERS = {id(case): number for number, case in enumerate(CASES)}


@functools.cache
def _whole(number: int) -> list[Array]:
    return whole(CASES[number])


def _expected(case: Case) -> list[Array]:
    """What the whole node gives, for all tests here."""
    return _whole(NUMBERS[id(case)])


@pytest.mark.parametrize("operator", sorted(RULES), ids=lambda key: ".".join(filter(None, key)))
def test_every_option_is_exact(operator: tuple[str, str]) -> None:
    cases = [case for case in BY_OPERATOR[operator] if runnable(case)]
    if not cases:
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} does not have {operator[1]} yet")
    proved = set()
    offered = [0] * len(WORLDS)
    for case in cases:
        expected = _expected(case)
        for place, world in enumerate(WORLDS):
            options = prove(case, world, expected=expected)
            proved |= set(map(kind, options))
            offered[place] += len(options)
    required = set(EXTRA_BY_DOMAIN.get(operator, EXTRA.get(operator[1], ())))
    if operator[1] not in ONLY_OTHERWISE:
        required = required | {"split->split"}
    assert required <= proved, f"not exercised: {required - proved}"
    assert proved - required <= BLOCKS, f"kinds of options that this test does not name: {proved - required}"
    if len(cases) == len(BY_OPERATOR[operator]):
        assert tuple(offered) == OFFERED[".".join(filter(None, operator))]


def test_no_rule_is_unproved() -> None:
    """Every rule has a node that the installed ONNX Runtime runs and that the rule offers something for; of
    operators newer than it the names are listed."""
    unproved = [
        ".".join(filter(None, operator))
        for operator in sorted(RULES)
        if not any(
            options_of(case, world, _expected(case))
            for case in BY_OPERATOR[operator]
            for world in WORLDS
            if runnable(case)
        )
    ]
    print(f"{len(RULES)} rules, {len(CASES)} nodes, not proved: {', '.join(unproved) or 'none'}")
    too_new = [
        ".".join(filter(None, operator))
        for operator, cases in BY_OPERATOR.items()
        if not any(runnable(case) for case in cases)
    ]
    assert set(unproved) <= set(too_new)


def test_no_case_is_of_an_unknown_operator() -> None:
    assert set(BY_OPERATOR) == set(RULES)


REFUSALS = ("return []", "return None", "return None, None", "continue")
"""Lines that offer nothing may stay unexecuted; whatever makes or emits an option may not."""


def test_the_cases_run_every_line_of_the_rules() -> None:
    folder = Path(sharding.rules.__file__).parent
    missing = _function_lines(folder) - _executed_lines(folder) - _lines_of_newer_cases()
    sources: dict[str, list[str]] = {name: Path(name).read_text().splitlines() for name, _ in missing}
    unproved = [
        f"{Path(name).name}:{line}: {sources[name][line - 1].strip()}"
        for name, line in sorted(missing)
        if sources[name][line - 1].strip() not in REFUSALS
    ]
    assert not unproved, "\n".join(unproved)


def _lines_of_newer_cases() -> set[tuple[str, int]]:
    """Rules with a case that is newer than the installed ONNX Runtime: the functions, not what they call."""
    rules = [RULES[case.domain, case.op_type] for case in CASES if not runnable(case)]
    codes = [inspect.unwrap(rule).__code__ for rule in rules]
    return {
        (code.co_filename, line)
        for outer in codes
        for code in (outer, *_functions(outer))
        for line in _lines(code)
    }


def _executed_lines(folder: Path) -> set[tuple[str, int]]:
    """Lines that run when every case's options are asked for and written; the tests above prove these."""
    executed: set[tuple[str, int]] = set()
    # Asked at every call of a function, so no paths are made of it.
    names = {str(path) for path in folder.glob("*.py")}

    def trace_line(frame: FrameType, event: str, argument: Any) -> Any:
        executed.add((frame.f_code.co_filename, frame.f_lineno))
        return trace_line

    def trace_call(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename in names:
            return trace_line(frame, event, argument)
        return None

    before = sys.gettrace()
    for case in filter(runnable, CASES):
        expected = _expected(case)
        sys.settrace(trace_call)
        try:
            for world in LINE_WORLDS:
                write(case, world, expected)
        finally:
            sys.settrace(before)
    return executed


def _function_lines(folder: Path) -> set[tuple[str, int]]:
    lines = set()
    for path in folder.glob("*.py"):
        if path.stem in ("base", "blocks"):
            continue
        for code in _functions(compile(path.read_text(), str(path), "exec")):
            lines |= {(str(path), line) for line in _lines(code)}
    return lines


def _lines(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line}


def _functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & inspect.CO_OPTIMIZED:  # the body of a class is not
                yield constant
            yield from _functions(constant)


@pytest.mark.parametrize(
    "found", [np.ones((1, 3)), np.ones(3), np.full((2, 3), np.nan), np.full((2, 3), 1.1)]
)
def test_what_differs_from_the_whole_node_is_found(found: Array) -> None:
    """Also a part whose shape alone differs, which would go with the whole."""
    whole_node = np.ones((2, 3))
    compare(whole_node.copy(), whole_node, 1e-5, "equal")
    with pytest.raises(AssertionError):
        compare(found, whole_node, 1e-5, "other")


@pytest.mark.parametrize("operator", sorted(RULES), ids=lambda key: ".".join(filter(None, key)))
def test_less_is_offered_where_less_is_known(operator: tuple[str, str]) -> None:
    """Of an input whose shape is not known no rule says more than of the same where it is, or what it says
    besides is exact, too."""
    for case in BY_OPERATOR[operator]:
        if not runnable(case):
            continue
        expected = _expected(case)
        known = {(tuple(item.inputs), tuple(item.outputs)) for item in options_of(case, 2, expected)}
        for index, value in enumerate(case.inputs):
            if value is None:
                continue
            less = replace(case, shapes={**case.shapes, index: None})
            found = {(tuple(item.inputs), tuple(item.outputs)) for item in options_of(less, 2, expected)}
            if not found <= known:
                prove(less, 2, expected=expected)


@pytest.mark.parametrize("operator", sorted(RULES), ids=lambda key: ".".join(filter(None, key)))
def test_no_more_is_offered_where_a_length_is_open(operator: tuple[str, str]) -> None:
    """Or what is offered besides is exact, too."""
    for case in BY_OPERATOR[operator]:
        if not runnable(case):
            continue
        expected = _expected(case)
        known = {(tuple(item.inputs), tuple(item.outputs)) for item in options_of(case, 2, expected)}
        for index, value in enumerate(case.inputs):
            array = value.value if isinstance(value, Const) else value
            for axis in range(0 if array is None or index in case.shapes else array.ndim):
                shape = [f"n{axis}" if at == axis else length for at, length in enumerate(array.shape)]
                less = replace(case, shapes={**case.shapes, index: shape})
                found = {(tuple(item.inputs), tuple(item.outputs)) for item in options_of(less, 2, expected)}
                if not found <= known:
                    prove(less, 2, expected=expected)
