"""Variable weights as the inputs of a cut model's sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime as ort

    from ranks.weights.updated.variable import VariableWeights


@dataclass(frozen=True)
class Bindings:
    """The inputs of one binding that are variable weights."""

    binding: ort.IOBinding
    names: Sequence[str]


class BoundWeights:
    """Gives each run of a program one version of the weights."""

    def __init__(self, weights: VariableWeights) -> None:
        self.weights = weights
        self.reshaped = False
        """Whether the present version has values of another shape than the one before."""
        self._snapshot = weights.snapshot()

    def renew(self) -> bool:
        """Takes the newest version for the run that begins; whether it is another one."""
        before, after = self._snapshot, self.weights.snapshot()
        if after is before:
            return False
        self._snapshot = after
        self.reshaped = any(array.shape != after.arrays[name].shape for name, array in before.arrays.items())
        return True

    def value(self, name: str) -> ort.OrtValue:
        """The value of one of the sessions' inputs."""
        return self._snapshot.feeds[name]

    def bind(self, binding: ort.IOBinding, names: Sequence[str]) -> Bindings:
        """Binds inputs of a session to the present version."""
        bound = Bindings(binding, names)
        self.update(bound)
        return bound

    def update(self, bound: Bindings) -> None:
        """Binds the present version in place of another one."""
        for name in bound.names:
            bound.binding.bind_ortvalue_input(name, self.value(name))
