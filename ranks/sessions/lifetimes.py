"""When each value that crosses a cut is needed, and which collectives may work in place."""

from __future__ import annotations

from dataclasses import dataclass, field

from ranks.sessions.cut import Cut


@dataclass
class Lifetimes:
    """From when to when each value is needed, level by level. Inputs and outputs of the model are kept
    throughout."""

    cut: Cut
    produced: list[list[str]] = field(init=False)
    """By a level's segment."""
    received: list[list[str]] = field(init=False)
    """By a level's collectives and control flow."""
    dead_before_exchange: list[list[str]] = field(init=False)
    dead_after: list[list[str]] = field(init=False)
    exchanged: set[str] = field(init=False)
    in_place: set[str | None] = field(init=False)
    """Outputs of collectives that can replace their input in its buffer."""

    def __post_init__(self) -> None:
        cut = self.cut
        self.produced = [list(segment.outputs) for segment in cut.segments]
        self.exchanged = {n for level in cut.collectives for c in level for n in (c.input, c.output) if n}
        last: dict[str, tuple[int, int]] = {}
        for level, (segment, collectives) in enumerate(zip(cut.segments, cut.collectives, strict=True)):
            last.update((name, (level, 0)) for name in segment.inputs)
            last.update((name, (level, 0)) for name in segment.outputs)
            last.update((name, (level, 1)) for c in collectives for name in (c.input, c.output) if name)
            for control in cut.controls[level]:  # comes after the collectives
                last.update((name, (level, 2)) for name in (*control.reads, *control.outputs))
        computed = {name for names in self.produced for name in names}
        computed |= {c.output for level in cut.collectives for c in level if c.output}
        kept = {*cut.inputs, *cut.outputs}
        self.in_place = set()
        for level, collectives in enumerate(cut.collectives):
            readers = [c.input for c in collectives]
            for c in collectives:
                alone = readers.count(c.input) == 1 and last.get(c.input or "") == (level, 1)
                variable = c.input in computed and c.input not in kept
                if c.op in ("AllReduce", "Broadcast") and alone and variable:
                    self.in_place.add(c.output)
        count = len(cut.segments)
        self.received = [[c.output for c in level if c.output] for level in cut.collectives]
        for level, controls in enumerate(cut.controls):
            self.received[level] += [name for control in controls for name in control.outputs]
        self.dead_before_exchange = [[] for _ in range(count)]
        self.dead_after = [[] for _ in range(count)]
        for name, (level, phase) in last.items():
            if name not in kept:
                (self.dead_after if phase else self.dead_before_exchange)[level].append(name)
