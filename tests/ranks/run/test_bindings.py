"""How values are bound to sessions, by what is known of them; and what a program says of its group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ranks.collectives.buffers import HostMemory
from ranks.run.program import Program
from ranks.run.steps.parts import Parts

FLOAT = 1


class Binding:
    """Remembers what was bound how."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append((name, *given))


@pytest.fixture
def parts() -> Parts:
    cut: Any = SimpleNamespace(weights={"w"})
    weights: Any = SimpleNamespace(value=lambda name: f"the weight {name}")
    elements = {"w": FLOAT, "x": FLOAT, "text": None, "list": None}
    return Parts(cut, [], elements, HostMemory(None), None, weights=weights)


def test_each_value_is_bound_as_what_it_is(parts: Parts) -> None:
    """Weights are ONNX Runtime's own values; numbers are bound by their address; texts and sequences have
    none."""
    binding: Any = Binding()
    text, several = np.array(["a"], object), object()
    x = np.ones((2, 3), np.float32)
    values: Any = {"x": x, "text": text, "list": several}
    for name in ("w", "text", "list", "x"):
        parts.bind_input(binding, name, values)
    assert binding.calls[:3] == [
        ("bind_ortvalue_input", "w", "the weight w"),
        ("bind_cpu_input", "text", text),
        ("bind_ortvalue_input", "list", several),
    ]
    assert binding.calls[3] == ("bind_input", "x", "cpu", 0, FLOAT, [2, 3], x.ctypes.data)


def test_values_lie_where_they_can(parts: Parts) -> None:
    """What is no tensor of numbers, or small, lies on the host."""
    device: Any = SimpleNamespace()
    apart = Parts(parts.cut, [], parts.elements, device, None, small=frozenset({"x"}))
    assert {name for name in parts.elements if apart.apart(name)} == {"x", "text", "list"}
    assert apart.place("w") is device and isinstance(apart.place("x"), HostMemory)
    assert not any(parts.apart(name) for name in parts.elements)
    assert parts.host is parts.memory


@pytest.mark.parametrize("group", [None, SimpleNamespace(name="shm")])
def test_a_program_names_its_collectives(group: Any) -> None:
    program: Any = SimpleNamespace(_communicator=group)
    assert Program.collectives.fget(program) == ("shm" if group else "")  # type: ignore[attr-defined]
