"""The sessions of a rank's model and what joins them, for all that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort

from ranks.collectives.buffers import HostMemory, Memory
from ranks.run.exchange import Exchanges
from ranks.sessions.lifetimes import Lifetimes

if TYPE_CHECKING:
    from ranks.collectives.base import Buffer, Communicator
    from ranks.run.point_to_point import Mail
    from ranks.sessions.cut import Cut
    from ranks.weights.updated.bound import BoundWeights

Values = dict[str, "Buffer"]


@dataclass(frozen=True)
class Parts:
    """As `ranks.run.program.Program` has them, whose sessions these are."""

    cut: Cut
    sessions: Sequence[ort.InferenceSession | None]
    elements: Mapping[str, int | None]
    memory: Memory
    group: Communicator | None
    small: frozenset[str] = frozenset()
    mail: Mail | None = None
    weights: BoundWeights | None = None
    drive: Callable[[int, Values], None] | None = None
    """Runs the control flow of a level (`Program.drive`)."""

    @cached_property
    def host(self) -> Memory:
        """Memory of the host."""
        return self.memory if isinstance(self.memory, HostMemory) else HostMemory(None)

    @cached_property
    def life(self) -> Lifetimes:
        """When each value is needed."""
        return Lifetimes(self.cut)

    @cached_property
    def exchanges(self) -> Exchanges:
        """The calls that collectives take."""
        return Exchanges(self.group, self.mail, self.memory, self.elements)

    def place(self, name: str) -> Memory:
        """Where a value lies."""
        return self.host if name in self.small or self.elements[name] is None else self.memory

    def apart(self, name: str) -> bool:
        """Whether a value lies on the host while others lie on a device.

        ONNX Runtime copies such a value when it is bound."""
        return self.place(name) is not self.memory

    def bind(self, bind: Callable[..., None], name: str, buffer: Buffer) -> None:
        """Binds a session's input or output to a buffer."""
        memory = self.place(name)
        shape = list(memory.shape(buffer))
        bind(name, memory.device, memory.device_id, self.elements[name], shape, memory.address(buffer))

    def bind_input(self, binding: ort.IOBinding, name: str, values: Values) -> None:
        """Binds a session's input to its value, whatever it is."""
        if name in self.cut.weights:
            assert self.weights is not None
            binding.bind_ortvalue_input(name, self.weights.value(name))
        elif self.elements[name] is not None:
            self.bind(binding.bind_input, name, values[name])
        elif isinstance(values[name], np.ndarray):
            binding.bind_cpu_input(name, values[name])
        else:
            binding.bind_ortvalue_input(name, values[name])

    def unbound(self, binding: ort.IOBinding, name: str) -> None:
        """Lets ONNX Runtime allocate an output."""
        memory = self.place(name)
        binding.bind_output(name, memory.device, memory.device_id)
