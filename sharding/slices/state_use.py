"""How a graph uses what it is fed and what it returns: whether an output is an input carried on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sharding.slices.domains import MICROSOFT

Node = tuple[str, str, Sequence[str], Sequence[str]]
"""Domain, operator, inputs and outputs."""


class Slot(NamedTuple):
    """Of an operator: the input that takes what was kept so far, the output that gives what to keep."""

    past: int
    present: int
    axis: int | None
    """The axis that grows; None: a value of the same shape takes its place."""
    buffer: bool = False
    fixed_by: int | None = None
    """An input that says how much of a buffer of fixed length is filled: past and present are that buffer."""


def _caches(past: int, axis: int | None, **more: bool | int) -> tuple[Slot, ...]:
    return tuple(Slot(past + i, 1 + i, axis, **more) for i in range(2))  # type: ignore[arg-type]


SLOTS: dict[tuple[str, str], tuple[Slot, ...]] = {
    (MICROSOFT, "GroupQueryAttention"): _caches(3, 2, buffer=True),
    (MICROSOFT, "SparseAttention"): _caches(3, None, buffer=True),
    (MICROSOFT, "DynamicSparseAttention"): _caches(3, None),
    (MICROSOFT, "MultiHeadAttention"): _caches(6, 2, fixed_by=8),
    (MICROSOFT, "DecoderMaskedMultiHeadAttention"): _caches(5, 2, fixed_by=7),
    (MICROSOFT, "Attention"): (Slot(4, 1, 3, fixed_by=6),),
    (MICROSOFT, "DecoderMaskedSelfAttention"): (Slot(4, 1, 3, fixed_by=6),),
    (MICROSOFT, "QAttention"): (Slot(8, 1, 3),),
    (MICROSOFT, "PagedAttention"): _caches(3, None),
    (MICROSOFT, "SparsePagedAttention"): _caches(3, None),
    (MICROSOFT, "LinearAttention"): (Slot(3, 1, None),),
    (MICROSOFT, "CausalConvWithState"): (Slot(3, 1, None),),
    (MICROSOFT, "GatedDeltaNet"): (Slot(6, 1, None),),
    (MICROSOFT, "VarlenCausalConvWithState"): (Slot(4, 1, None),),
    ("", "LinearAttention"): (Slot(3, 1, None),),
    ("", "CausalConvWithState"): (Slot(3, 1, None),),
    ("", "Attention"): _caches(4, 2, fixed_by=6),
    ("", "TensorScatter"): (Slot(0, 0, None),),
    ("", "LSTM"): (Slot(5, 1, None), Slot(6, 2, None)),
    ("", "GRU"): (Slot(5, 1, None),),
    ("", "RNN"): (Slot(5, 1, None),),
}
"""Operators that carry a state themselves."""
RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
MOVERS = frozenset({"Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})
"""Operators whose result is their first input, written differently."""
PARTS = frozenset({"Split", "Gather", "Slice", "SplitToSequence", "SequenceAt"})
"""Operators whose result is a part of their first input."""
OPAQUE = frozenset({"If", "Loop", "Scan"})
_NOTHING: tuple[Node, int] = (("", "", (), ()), -1)
MAX_PATH = 64
"""Nodes between what is kept and where it is used."""


class Carried(NamedTuple):
    """What the graph says of an output: the input that it carries on, or nothing of any."""

    input: str
    grows: bool
    """New positions stand behind those of the input."""
    axis: int | None = None
    """Where that is known."""
    buffer: bool = False
    by_operator: bool = False
    """An operator made for it says so."""
    same: bool = False
    """It is the input itself."""
    joined: str = ""
    """The result of the Concat that adds the new positions."""


class Uses:
    """A graph's nodes by what they make and read."""

    def __init__(self, inputs: Iterable[str], outputs: Iterable[str], nodes: Iterable[Node]) -> None:
        self.inputs, self.outputs = dict.fromkeys(inputs), dict.fromkeys(outputs)
        self.made: dict[str, tuple[Node, int]] = {}
        self.read: dict[str, list[Node]] = {}
        self.nodes: list[Node] = []
        for domain, op_type, taken, given in nodes:
            node = ("" if domain == "ai.onnx" else domain, op_type, tuple(taken), tuple(given))
            self.nodes.append(node)
            self.made.update((name, (node, index)) for index, name in enumerate(given) if name)
            for name in dict.fromkeys(taken):
                self.read.setdefault(name, []).append(node)

    def carried(self, output: str) -> Carried | None:
        """The input that an output carries on, as far as single chains of operators tell; None where it is
        computed anew, and no input (``""``) where the chain ends at what cannot be looked into."""
        name, part, window, joined, direct = output, False, False, "", True
        for _ in range(MAX_PATH):
            if name in self.inputs:
                grows = bool(joined) and not window
                return Carried(name, grows, same=not joined and not part, joined=joined if grows else "")
            if name not in self.made:
                return None
            node, index = self.made[name]
            domain, op_type, taken, _ = node
            slot = next((slot for slot in SLOTS.get((domain, op_type), ()) if slot.present == index), None)
            if slot is not None:
                return self._by_slot(node, slot, direct=direct)
            if domain or op_type in OPAQUE:
                return Carried("", grows=False)
            if not taken:
                return None
            if op_type == "Concat":
                window, joined = window or part, name
            elif op_type in PARTS:
                # Before the new positions are there, a part of a stack; behind that, a window of the last.
                part, moving = True, op_type == "Slice" or not self._are_constants(taken[1:])
                window = window or moving
            elif op_type not in MOVERS:
                return None
            direct = direct and op_type == "Identity"
            name = taken[0]
        return None

    def _are_constants(self, names: Sequence[str]) -> bool:
        """Whether these are known before the model runs."""
        for name in names:
            if name in self.inputs:
                return False
            if name in self.made and self.made[name][0][1] != "Constant":
                return False
        return True

    def _by_slot(self, node: Node, slot: Slot, *, direct: bool) -> Carried | None:
        taken = node[2]
        name = taken[slot.past] if slot.past < len(taken) else ""
        for _ in range(MAX_PATH):
            if not name:
                return None
            if name in self.inputs:
                break
            if name not in self.made or self.made[name][0][1] not in MOVERS or self.made[name][0][0]:
                return None
            (_, op_type, before, _), _ = self.made[name]
            direct = direct and op_type == "Identity"
            name = before[0]
        else:
            return None
        fixed = slot.fixed_by is not None and slot.fixed_by < len(taken) and bool(taken[slot.fixed_by])
        grows = slot.axis is not None and not (fixed and node[0])
        axis = slot.axis if direct and grows else None
        buffer = slot.buffer and direct and (not grows or self._unseen(node))
        return Carried(name, grows, axis, buffer, by_operator=True)

    def _unseen(self, node: Node) -> bool:
        """Whether nothing but the operator reads its states: how long a buffer is, and what lies behind the
        end of what it holds, shows nowhere. All of them: operators want them equally long."""
        domain, op_type, taken, given = node
        for slot in SLOTS[domain, op_type]:
            past, present = (
                names[place] if place < len(names) else ""
                for names, place in ((taken, slot.past), (given, slot.present))
            )
            while len(self.read.get(past, ())) == 1 and self.made.get(past, _NOTHING)[0][1] == "Identity":
                past = self.made[past][0][2][0]
            while (
                present
                and present not in self.outputs
                and [n[1] for n in self.read.get(present, ())] == ["Identity"]
            ):
                present = self.read[present][0][3][0]
            if (past and len(self.read[past]) > 1) or (present and self.read.get(present)):
                return False
        return True

    def recurrent(self) -> Iterator[tuple[str, str]]:
        """Inputs and outputs that are initial and final states of the same recurrent nodes."""
        starts: dict[str, set[tuple[str, int]]] = {}
        ends: dict[str, set[tuple[str, int]] | None] = {}
        for domain, op_type, taken, given in self.nodes:
            for slot in SLOTS[domain, op_type] if not domain and op_type in RECURRENT else ():
                if slot.past < len(taken) and taken[slot.past]:
                    end = given[slot.present] if slot.present < len(given) else ""
                    for name in self._sources(taken[slot.past]) & set(self.inputs):
                        starts.setdefault(name, set()).add((end, slot.past))
        for output in self.outputs:
            found: set[tuple[str, int]] | None = set()
            for name in self._sources(output):
                (domain, op_type, _, _), index = self.made.get(name, _NOTHING)
                slots = SLOTS.get((domain, op_type), ()) if op_type in RECURRENT else ()
                past = next((slot.past for slot in slots if slot.present == index), None)
                found = None if past is None or found is None else found | {(name, past)}
            ends[output] = found
        for name, kept in starts.items():
            matching = [output for output, found in ends.items() if found == kept]
            if len(matching) == 1:
                yield name, matching[0]

    def _sources(self, name: str) -> set[str]:
        """What a value is put together from, by nodes that only move elements."""
        found, waiting, seen = set(), [name], set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            (domain, op_type, taken, _), _ = self.made.get(name, _NOTHING)
            if not taken or domain or op_type not in MOVERS | PARTS | {"Concat"}:
                found.add(name)
            else:
                waiting += taken if op_type == "Concat" else taken[:1]
        return found

    def is_only_kept(self, carried: Carried) -> bool:
        """Whether an input is used for nothing but to be carried on, and what is carried on for more."""
        waiting, seen = [carried.input], set()
        while waiting:
            name = waiting.pop()
            if name in seen or name == carried.joined:
                continue
            seen.add(name)
            if name in self.outputs:
                return False
            for domain, op_type, _, given in self.read.get(name, ()):
                if domain or op_type not in MOVERS | PARTS | {"Concat", "Shape"}:
                    return False
                if op_type == "Concat" and carried.joined not in given:
                    return False
                if op_type != "Shape":
                    waiting += given
        return any(
            not (domain == "" and op_type in MOVERS and set(given) & set(self.outputs))
            for domain, op_type, _, given in self.read.get(carried.joined, ())
        )
