"""The types that operators take: ONNX's schemas, and ONNX Runtime's for its own operators."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx


@dataclass(frozen=True)
class Signature:
    """The formal types of an operator: a type, or the name of a variable that stands for one of several."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    variadic_inputs: bool
    variadic_outputs: bool
    allowed: Mapping[str, frozenset[str]]
    """Variable -> the types that it may stand for."""

    def input(self, index: int) -> str:
        """The formal type of input ``index``; empty where there is no such input."""
        return _at(self.inputs, index, self.variadic_inputs)

    def output(self, index: int) -> str:
        """The formal type of output ``index``; empty where there is no such output."""
        return _at(self.outputs, index, self.variadic_outputs)


class _Parameter(Protocol):
    typeStr: str  # noqa: N815 - ONNX Runtime's name


class _Constraint(Protocol):
    type_param_str: str
    allowed_type_strs: Sequence[str]


class _RuntimeSchema(Protocol):
    """What ONNX Runtime says of an operator of its own."""

    domain: str
    name: str
    since_version: int
    inputs: Sequence[_Parameter]
    outputs: Sequence[_Parameter]
    max_input: int
    max_output: int
    type_constraints: Sequence[_Constraint]


@functools.cache
def signature(domain: str, operator: str, version: int) -> Signature | None:
    """The operator's signature in this version of its domain; None where nobody knows it."""
    if domain in {"", "ai.onnx", "ai.onnx.ml"}:
        import onnx

        domain = "" if domain == "ai.onnx" else domain
        try:
            schema = onnx.defs.get_schema(operator, version, domain)
        except onnx.defs.SchemaError:
            return None
        variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
        return Signature(
            tuple(item.type_str for item in schema.inputs),
            tuple(item.type_str for item in schema.outputs),
            _ends_in(schema.inputs, variadic),
            _ends_in(schema.outputs, variadic),
            {item.type_param_str: frozenset(item.allowed_type_strs) for item in schema.type_constraints},
        )
    known = _runtime_schemas().get((domain, operator), [])
    fitting = [schema for schema in known if schema.since_version <= version]
    if not fitting:
        return None
    own = max(fitting, key=lambda item: item.since_version)
    return Signature(
        tuple(item.typeStr for item in own.inputs),
        tuple(item.typeStr for item in own.outputs),
        len(own.inputs) < own.max_input,
        len(own.outputs) < own.max_output,
        {item.type_param_str: frozenset(item.allowed_type_strs) for item in own.type_constraints},
    )


@functools.cache
def _runtime_schemas() -> dict[tuple[str, str], list[_RuntimeSchema]]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[tuple[str, str], list[_RuntimeSchema]] = {}
    # Not in every build of ONNX Runtime; then its own operators keep their types.
    for schema in getattr(state, "get_all_operator_schema", list)():
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return found


def _ends_in(items: Sequence[onnx.defs.OpSchema.FormalParameter], option: object) -> bool:
    return len(items) > 0 and items[-1].option == option


def _at(items: tuple[str, ...], index: int, variadic: bool) -> str:
    if index < len(items):
        return items[index]
    return items[-1] if variadic and items else ""
