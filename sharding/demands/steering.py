"""A plan steered by weight-name patterns, in YAML: one pattern and one placement a line.

    layers.*.mlp.up: column             # the output features of the product (Megatron-LM's column-parallel)
    layers.*.mlp.down: row              # the input features: the products are then summed
    "*.embed_tokens.weight": replicate  # whole on every rank
    lm_head: split:0                    # an axis, counted as the file stores the weight
    layers.*.qkv: {split: 1, blocks: 3} # each rank a part of each of 3 equal blocks; also: split:1/3

Patterns are those of a shell (``*``, ``?``, ``[...]``) over the names of the initializers in the file. A
pattern matches a whole name, or its end from a dot or slash on; it may leave out the last part, such as
``.weight``, and then stands for the module's weights, but not for its biases, which follow them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from fnmatch import translate
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.common.documents import DocumentError, quote, read_document
from sharding.common.text import counted, similar
from sharding.demands.demand import Demand, in_words, label_of
from sharding.demands.features import feature_axes
from sharding.slices.placement import PARTIAL, REPLICATED, Placement, Split, parse_placement

if TYPE_CHECKING:
    from sharding.reading.read import Source
    from sharding.search.steps import Step

log = logging.getLogger(__name__)

WHAT = "steering file"
FEATURES = ("column", "row")
EXPECTED = "column, row, replicate, split:AXIS, split:AXIS/BLOCKS or {split: AXIS, blocks: BLOCKS}"
MAX_PATTERNS = 10_000
MAX_PATTERN = 1000
"""Characters."""


def read_steering(path: Path) -> dict[str, Placement | str]:
    """Pattern -> a placement, or ``column`` or ``row``. Raises `DocumentError`."""
    data, _ = read_document(path, WHAT)
    if not isinstance(data, dict) or not data:
        found = "an empty file" if data is None or data == {} else quote(data)
        raise DocumentError(
            f"{path}: expected a mapping of weight-name patterns to {EXPECTED}, found {found}."
        )
    if len(data) > MAX_PATTERNS:
        raise DocumentError(f"{path}: at most {MAX_PATTERNS} patterns are possible, found {len(data)}.")
    for pattern in data:
        if not pattern or len(pattern) > MAX_PATTERN:
            raise DocumentError(
                f"{path}: a pattern has 1 to {MAX_PATTERN} characters, {quote(pattern)} has {len(pattern)}."
            )
    return {pattern: _wanted(path, pattern, value) for pattern, value in data.items()}


def _wanted(path: Path, pattern: str, value: object) -> Placement | str:
    if value in FEATURES:
        return str(value)
    if value == "replicate":
        return REPLICATED
    if isinstance(value, str):
        placement = parse_placement(value.replace(" ", ""))
        if placement is not None and placement != PARTIAL:
            return placement
    if isinstance(value, dict) and value.keys() <= {"split", "blocks"} and "split" in value:
        axis, blocks = value["split"], value.get("blocks", 1)
        # YAML's true is Python's True, which is an int.
        if type(axis) is int and type(blocks) is int and -1000 < axis < 1000 and 1 <= blocks < 10**9:
            return Split(axis, blocks)
    raise DocumentError(f"{path}: {quote(pattern)}: expected {EXPECTED}, found {quote(value)}.")


def steered_demands(path: Path, source: Source, graph: Sequence[Step]) -> list[tuple[Step, Demand, str]]:
    """What the file asks of each step that reads a weight, with the words that begin an error about it.

    Raises `DocumentError` for a pattern that matches no weight, two that contradict each other, and what a
    weight cannot do: an axis that it has not, a length that does not divide, columns of what is no product.
    """
    wanted = read_steering(path)
    chosen: dict[str, tuple[str, Placement | str]] = {}
    users = _users(graph)
    names = [name for name in source.weights if name in users]
    for pattern, placement in wanted.items():
        matched = _matched(pattern, names, source)
        if not matched:
            raise DocumentError(f"{path}: {quote(pattern)} matches no weight{_hint(pattern, names)}.")
        log.info("steering: %s (%s) is for %s", pattern, placement, _listed(matched))
        for name in matched:
            other, before = chosen.setdefault(name, (pattern, placement))
            if before != placement:
                raise DocumentError(
                    f"{path}: {quote(other)} ({before}) and {quote(pattern)} ({placement}) contradict each "
                    f"other: both match {name!r}."
                )
    demands: list[tuple[Step, Demand, str]] = []
    world = graph[0].view.world if graph else 1
    for name, (pattern, asked) in chosen.items():
        for step, index in users[name]:
            where = f"{path}: {quote(pattern)}: weight {name!r} in {label_of(step.node)}"
            placed = _placement(asked, step, index, where, users)
            if isinstance(placed, Split):
                placed = _checked(placed, source.weights[name].shape, world, where)
            demands.append((step, Demand({index: placed}), where))
    return demands


Users = dict[str, list[tuple["Step", int]]]
"""Weight name -> the steps that read it, and as which of their inputs."""


def _users(graph: Sequence[Step]) -> Users:
    users: Users = {}
    for step in graph:
        for index, value in enumerate(step.inputs):
            if value is not None and value.is_initializer():
                users.setdefault(value.name or "", []).append((step, index))
    return users


def _matched(pattern: str, names: Sequence[str], source: Source) -> list[str]:
    expression = re.compile(translate(pattern))
    matched = []
    for name in names:
        is_vector = len(source.weights[name].shape) < 2
        if any(_matches(expression, text, is_vector) for text in (name, *source.made_of.get(name, ()))):
            matched.append(name)
    return matched


def _matches(expression: re.Pattern[str], name: str, is_vector: bool) -> bool:
    starts = [0, *(found.end() for found in re.finditer(r"[./:]+", name))]
    module = name if is_vector else re.sub(r"[./][^./]*$", "", name)
    return any(
        expression.match(text, start) for text in {name, module} for start in starts if start < len(text)
    )


def _hint(pattern: str, names: Sequence[str]) -> str:
    plain = re.sub(r"[*?\[\]]+", "", pattern)
    close = similar(plain, names, 3, 0.4)
    close = close or list(names[:3])
    if not close:
        return ": the model has none"
    return (
        f"; the model's weights are named like {', '.join(map(repr, close))} (`shardrun slice -v` lists them)"
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{counted(len(names), 'weight')}: {', '.join(names[:3])}{more}"


def _placement(asked: Placement | str, step: Step, index: int, where: str, users: Users) -> Placement:
    if not isinstance(asked, str):
        return asked
    axes = feature_axes(step.node, index)
    if axes is None:
        raise DocumentError(
            f"{where}: {asked!r} has no meaning there, for it is no product of matrices, convolution or "
            f"look-up; say split:AXIS."
        )
    column, row = axes
    return Split(column if asked == "column" else row)


def _checked(placement: Split, shape: tuple[int, ...], world: int, where: str) -> Split:
    if not -len(shape) <= placement.axis < len(shape):
        raise DocumentError(
            f"{where}: axis {placement.axis} is not one of its {len(shape)} axes {list(shape)}."
        )
    axis = placement.axis % len(shape)
    if (
        world % placement.copies
        or shape[axis] % (placement.parts(world) * placement.blocks)
        or not shape[axis]
    ):
        raise DocumentError(
            f"{where}: axis {axis} of length {shape[axis]} cannot be {in_words(placement)} over "
            f"{counted(world, 'rank')}: the parts would not be equal."
        )
    if placement.copies == world:
        return placement
    return Split(axis, placement.blocks, placement.copies)
