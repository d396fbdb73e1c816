"""Model-local functions are inlined, so that what they compute, and the weights in them, can be split.

On the message, whose large weights are references by then, with the inliner of the onnx package. A function
stays a whole operator where that would change what it means, as where its operators have other versions than
the model's.
"""

from __future__ import annotations

import graphlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.errors import ModelError
from sharding.onnx_files.validity import first_cause
from sharding.onnx_files.walk import nodes_in

if TYPE_CHECKING:
    from typing import TypeAlias

    import onnx

    Key = tuple[str, str, str]

    Holder: TypeAlias = onnx.GraphProto | onnx.FunctionProto

logger = logging.getLogger(__name__)

MAX_NODES = 1_000_000
"""A model whose functions would grow to more nodes than this is refused: a few functions that call each other
twice would fill any memory, ONNX Runtime's too."""


def inline_functions(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model with its functions inlined where that is possible; the message itself may change.

    Raises `ModelError` for functions that call themselves or each other without end, and two of one name.
    """
    if not proto.functions:
        return proto
    import onnx.inliner

    functions = _by_key(proto, path)
    order = _callees_first(functions, path)
    size = _size_inlined(proto, functions, order)
    if size > MAX_NODES:
        raise ModelError(
            f"{path} has functions that call each other so often that it would have {size} nodes; at most "
            f"{MAX_NODES} are possible."
        )
    if _needs_late_defaults(functions):
        logger.warning("%s: its functions stay whole operators.", path)
        return proto
    holders: list[Holder] = [proto.graph, *proto.functions]
    for holder in holders:
        _bind_defaults(holder, functions)
    for function in proto.functions:
        _use_versions_of(proto, function)
        _separate_outputs(proto, function)
    try:
        result = onnx.inliner.inline_local_functions(proto)
    except Exception as error:  # what the inliner cannot do stays a whole operator
        logger.warning("%s: its functions stay whole operators (%s).", path, first_cause(error))
        return proto
    known = {item.domain for item in result.opset_import}
    for function in functions.values():
        for item in function.opset_import:
            if item.domain not in known:
                known.add(item.domain)
                result.opset_import.add(domain=item.domain, version=item.version)
    return result


def _by_key(proto: onnx.ModelProto, path: Path) -> dict[Key, onnx.FunctionProto]:
    functions: dict[Key, onnx.FunctionProto] = {}
    for function in proto.functions:
        key = (function.domain, function.name, _overload(function))
        if key in functions:
            raise ModelError(f"{path} is not valid: it has two functions named {function.name!r}.")
        functions[key] = function
    return functions


def _overload(item: onnx.NodeProto | onnx.FunctionProto) -> str:
    return str(getattr(item, "overload", ""))


def _key(node: onnx.NodeProto) -> Key:
    return (node.domain, node.op_type, _overload(node))


def _calls(holder: Holder, functions: dict[Key, onnx.FunctionProto]) -> Iterator[Key]:
    return (key for key in map(_key, nodes_in(holder)) if key in functions)


def _callees_first(functions: dict[Key, onnx.FunctionProto], path: Path) -> list[Key]:
    calls = {key: set(_calls(function, functions)) for key, function in functions.items()}
    try:
        return list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        name = error.args[1][0][1]
        raise ModelError(f"{path} is not valid: its function {name!r} calls itself.") from None


def _size_inlined(
    proto: onnx.ModelProto, functions: dict[Key, onnx.FunctionProto], order: Iterable[Key]
) -> int:
    """The nodes that the model would have."""
    sizes: dict[Key, int] = {}
    for key in order:
        sizes[key] = _size(functions[key], sizes)
    return _size(proto.graph, sizes)


def _size(holder: Holder, sizes: dict[Key, int]) -> int:
    return sum(sizes.get(_key(node), 1) for node in nodes_in(holder))


def _needs_late_defaults(functions: dict[Key, onnx.FunctionProto]) -> bool:
    """Whether a function hands on an attribute that it may not have been given, to a function that has a
    default for it. That shows only while inlining, and the inliner knows no defaults."""
    for function in functions.values():
        own = {item.name for item in function.attribute_proto}
        for node in nodes_in(function):
            callee = functions.get(_key(node))
            if callee is None:
                continue
            defaults = {item.name for item in callee.attribute_proto}
            if any(
                item.name in defaults and item.ref_attr_name and item.ref_attr_name not in own
                for item in node.attribute
            ):
                return True
    return False


def _bind_defaults(holder: Holder, functions: dict[Key, onnx.FunctionProto]) -> None:
    """Writes the default values of a function's attributes into its calls."""
    for node in nodes_in(holder):
        callee = functions.get(_key(node))
        if callee is not None:
            given = {item.name for item in node.attribute}
            node.attribute.extend(item for item in callee.attribute_proto if item.name not in given)


def _use_versions_of(proto: onnx.ModelProto, function: onnx.FunctionProto) -> None:
    """Gives a function the model's operator versions where its operators are the same in both."""
    versions = {item.domain: item.version for item in proto.opset_import}
    for item in function.opset_import:
        wanted = versions.get(item.domain)
        if wanted is None or wanted == item.version:
            continue
        names = {node.op_type for node in nodes_in(function) if node.domain == item.domain}
        if all(_same_operator(name, item.domain, item.version, wanted) for name in names):
            item.version = wanted


def _same_operator(name: str, domain: str, one: int, other: int) -> bool:
    import onnx

    try:
        return (
            onnx.defs.get_schema(name, one, domain).since_version
            == onnx.defs.get_schema(name, other, domain).since_version
        )
    except Exception:  # an operator that onnx does not know
        return False


def _separate_outputs(proto: onnx.ModelProto, function: onnx.FunctionProto) -> None:
    """Gives each output of a function a node of its own: an input returned as it is, or a value returned
    twice, has no name that the call's output could take."""
    taken = {name for node in nodes_in(function) for name in (*node.input, *node.output)}
    taken |= {*function.input, *function.output}
    seen = set(function.input)
    for index, name in enumerate(function.output):
        if name in seen:
            number = 0
            while f"{name}_{number}" in taken:
                number += 1
            function.output[index] = f"{name}_{number}"
            taken.add(function.output[index])
            function.node.add(op_type="Identity", input=[name], output=[function.output[index]])
        seen.add(name)
    versions = [item.version for item in proto.opset_import if not item.domain]
    if versions and all(item.domain for item in function.opset_import):
        function.opset_import.add(domain="", version=versions[0])
