"""One self-contained HTML page that draws a plan: layers by ranks, what is split, where ranks talk, bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from launcher.inspection.inspection import Inspection, Layer, Talk, shape_text
from sharding.common.text import counted, human_bytes, listed_collectives
from sharding.slices.state import Tensor

MAX_COLUMNS = 16
"""More ranks than this are drawn as one column per pipeline stage, whose ranks hold equal amounts."""
MANY_COLUMNS = 8
"""More columns than this are drawn narrow, so that a window shows them all."""
MAX_WEIGHTS = 2000
"""Weights listed per layer."""

KEYS = (
    ("split", "held by this rank alone, or by its copies"),
    ("whole", "whole on every rank of the stage"),
    ("band", "ranks talk"),
)
"""What a colour means; a line is not broken between the two."""

STYLE = """
:root { --ink: #1c2430; --soft: #667085; --line: #d8dee8; --ground: #fff; --band: #f4f6fa; --split:
  #2f6fde;
  --whole: #9aa5b8; --talk: #b4540a; --talk-ground: #fdf1e3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf2; --soft: #98a2b3; --line: #354052;
  --ground: #151a22;
  --band: #1d2430; --split: #5b93f5; --whole: #667085; --talk: #f2a45c; --talk-ground: #33261a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 90rem; color: var(--ink); background: var(--ground);
  font: 15px/1.45 system-ui, "Segoe UI", "Liberation Sans", sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 1.8rem 0 .5rem; }
.facts { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: 1rem 0; }
.facts div { min-width: 8rem; } .facts b { display: block; font-size: 1.15rem; }
.facts span, .soft { color: var(--soft); font-size: .85rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; text-align: left; vertical-align: middle; border-bottom: 1px solid
  var(--line); }
th { font-weight: 600; font-size: .85rem; } th small { display: block; font-weight: 400; color:
  var(--soft); }
td.n, th.n { text-align: right; white-space: nowrap; }
table.plan th:first-child, table.plan td:first-child { position: sticky; left: 0; background:
  var(--ground);
  min-width: 15rem; max-width: 26rem; overflow-wrap: anywhere; }
table.plan td.cell { min-width: 6.5rem; }
table.many th, table.many td { padding-left: .25rem; padding-right: .25rem; }
table.many td, table.many th { font-size: .75rem; }
table.many td.cell { min-width: 3.4rem; white-space: nowrap; }
table.many th:first-child, table.many td:first-child { min-width: 11rem; }
.bar { display: flex; height: .8rem; background: var(--band); border-radius: 2px; overflow: hidden; }
.bar i { display: block; height: 100%; } .split { background: var(--split); } .whole { background:
  var(--whole);
  background-image: repeating-linear-gradient(45deg, transparent 0 3px, #fff5 3px 6px); }
.none { color: var(--soft); text-align: center; }
tr.talk td { padding: .15rem .5rem; } tr.talk td.band { background: var(--talk-ground); color:
  var(--talk);
  text-align: center; font-size: .85rem; border-left: 3px solid var(--talk); border-right: 3px solid
  var(--talk); }
td.band span { position: sticky; left: 16rem; right: .5rem; }
tr.total td { font-weight: 600; border-top: 2px solid var(--ink); }
.key span { display: inline-block; white-space: nowrap; margin-right: 1rem; }
.key i { display: inline-block; width: 1.6rem; height: .8rem; margin-right: .35rem; border-radius: 2px;
  vertical-align: middle; } .key i.band { background: var(--talk-ground); border: 2px solid
  var(--talk); }
details summary { cursor: pointer; } details table { margin: .4rem 0; font-size: .85rem; }
td.name { overflow-wrap: anywhere; font-family: ui-monospace, "Liberation Mono", monospace; }
/* A phone: the names scroll with the table, which they would cover otherwise. */
@media (max-width: 40rem) {
  body { padding: .75rem; }
  table.plan th, table.plan td { padding: .25rem .2rem; font-size: .72rem; }
  table.plan th:first-child, table.plan td:first-child { position: static; min-width: 6rem; max-width: 55vw; }
  table.plan td.cell { min-width: 3rem; }
  td.band span { left: .5rem; }
  table.tensors th, table.tensors td { padding: .25rem .2rem; font-size: .75rem; }
  table.tensors td.name { min-width: 9rem; } table.tensors td:last-child { overflow-wrap: anywhere; }
  details { max-width: 55vw; overflow-x: auto; }
}
"""


@dataclass(frozen=True)
class _Column:
    title: str
    place: str
    stage: int


def render(inspection: Inspection) -> str:
    """The page's text; it refers to nothing outside itself."""
    return "\n".join(_page(inspection)) + "\n"


def _page(x: Inspection) -> Iterator[str]:
    title = escape(x.title)
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}: plan</title>\n<style>{STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{title}</h1>"
    yield f'<div class="soft">{escape(describe_mesh(x))}</div>'
    yield '<div class="facts">'
    for what, value in _facts(x):
        yield f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>"
    yield "</div>"
    yield "<h2>Layers and ranks</h2>"
    keys = "".join(f'<span><i class="{kind}"></i>{text}</span> ' for kind, text in KEYS)
    yield f'<p class="key">{keys}</p>'
    many = " many" if len(_columns(x)) > MANY_COLUMNS else ""
    yield f'<div class="scroll"><table class="plan{many}">'
    yield from _plan(x)
    yield "</table></div>"
    yield "<h2>Inputs and outputs</h2>"
    yield '<div class="scroll"><table class="tensors">'
    yield "<tr><th></th><th>name</th><th>type</th><th>shape</th></tr>"
    for kind, tensors in (("input", x.inputs), ("output", x.outputs)):
        yield from (_tensor_row(kind, tensor) for tensor in tensors)
    yield "</table></div>"
    if x.warning:
        yield f"<p><strong>Warning:</strong> {escape(x.warning)}.</p>"
    if x.whole:
        yield "<h2>Operators that hold a large weight whole</h2><ul>"
        yield from (f"<li>{count} {escape(name)}</li>" for name, count in sorted(x.whole.items()))
        yield "</ul>"
    yield "</body>\n</html>"


def describe_mesh(x: Inspection) -> str:
    """The mesh and what figures of bytes assume, in one sentence."""
    axes = [f"{size} {name}" for name, size in x.mesh.axes if size > 1]
    text = f"{counted(x.mesh.size, 'rank')}" + (f" ({' × '.join(axes)})" if axes else "")
    if x.micro_batches > 1:
        text += f", {counted(x.micro_batches, 'micro-batch').replace('batchs', 'batches')}"
    given = ", ".join(f"{name}={size}" for name, size in x.dims.items())
    return f"{text}; bytes sent are for {given or 'a batch of 1 and 64 for other symbols'}"


def _facts(x: Inspection) -> list[tuple[str, str]]:
    held = [x.stage_bytes(stage) for stage in range(x.stages)]
    sent = max(x.stage_sent(stage) for stage in range(x.stages))
    talks = listed_collectives((talk.op, talk.within) for layer in x.layers for talk in layer.talks)
    each = (
        human_bytes(max(held))
        if max(held) == min(held)
        else f"{human_bytes(min(held))} – {human_bytes(max(held))}"
    )
    share = f" ({100 * max(held) / x.bytes:.1f} %)" if x.bytes else ""
    return [
        ("weights", human_bytes(x.bytes)),
        ("held by each rank", each + share),
        ("collectives per inference", talks),
        ("sent by each rank per inference", human_bytes(sent)),
        *([("state", x.state.text())] if x.state else []),
    ]


def _columns(x: Inspection) -> list[_Column]:
    if x.mesh.size > MAX_COLUMNS:
        each = counted(x.mesh.size // x.stages, "rank")
        return [
            _Column(f"stage {stage}" if x.stages > 1 else "every rank", each, stage)
            for stage in range(x.stages)
        ]
    found = []
    for rank in range(x.mesh.size):
        here = x.mesh.coordinates(rank)
        place = " · ".join(f"{name} {here[name]}" for name, size in x.mesh.axes if size > 1)
        found.append(_Column(f"rank {rank}", place, here["pipeline"]))
    return found


def _plan(x: Inspection) -> Iterator[str]:
    columns = _columns(x)
    head = "".join(f"<th>{escape(c.title)}<small>{escape(c.place)}</small></th>" for c in columns)
    yield f'<thead><tr><th>layer</th><th class="n">weights</th>{head}</tr></thead><tbody>'
    largest = max((layer.rank_bytes for layer in x.layers), default=0) or 1
    for layer in x.layers:
        cells = "".join(
            _cell(layer, largest) if c.stage == layer.stage else '<td class="none">·</td>' for c in columns
        )
        yield f'<tr><td>{_details(layer)}</td><td class="n">{human_bytes(layer.bytes)}</td>{cells}</tr>'
        if layer.talks:
            yield f'<tr class="talk"><td></td><td></td>{_bands(layer, columns)}</tr>'
    totals = "".join(f"<td>{human_bytes(x.stage_bytes(c.stage))}</td>" for c in columns)
    whole = human_bytes(x.bytes)
    yield f'<tr class="total"><td>all weights</td><td class="n">{whole}</td>{totals}</tr></tbody>'


def _cell(layer: Layer, largest: int) -> str:
    split, whole = layer.split_bytes, layer.rank_bytes - layer.split_bytes
    if not layer.rank_bytes:
        return '<td class="cell none">no weights</td>'
    bars = "".join(
        f'<i class="{kind}" style="width:{max(100 * size / largest, 0.5):.2f}%"></i>'
        for kind, size in (("split", split), ("whole", whole))
        if size
    )
    tip = f"{human_bytes(split)} split, {human_bytes(whole)} whole"
    return f'<td class="cell" title="{tip}"><div class="bar">{bars}</div>{human_bytes(layer.rank_bytes)}</td>'


def _bands(layer: Layer, columns: Sequence[_Column]) -> str:
    """One band over each run of columns whose ranks take part."""
    text, cells, place = escape(_talks(layer.talks)), "", 0
    while place < len(columns):
        takes_part = columns[place].stage == layer.stage
        end = place
        while end < len(columns) and (columns[end].stage == layer.stage) == takes_part:
            end += 1
        span = end - place
        cells += (
            f'<td class="band" colspan="{span}"><span>{text}</span></td>'
            if takes_part
            else f'<td colspan="{span}"></td>'
        )
        place = end
    return cells


def _talks(talks: Sequence[Talk]) -> str:
    """``2 AllReduce, 1.2 MB sent``."""
    counts = Counter(talk.op for talk in talks)
    ops = ", ".join(f"{count} {op}" for op, count in counts.items())
    return f"{ops}: {human_bytes(sum(talk.sent for talk in talks))} sent"


def _details(layer: Layer) -> str:
    name = escape(layer.name)
    if not layer.weights and not layer.talks:
        return name
    rows = "".join(
        f'<tr><td class="name">{escape(w.name)}</td><td>{escape(str(w.placement))}</td><td>{escape(w.dtype)} '
        f'{escape(shape_text(w.shape))}</td><td class="n">{human_bytes(w.bytes)}</td></tr>'
        for w in layer.weights[:MAX_WEIGHTS]
    )
    rows += "".join(
        f'<tr><td class="name">{escape(t.tensor)}</td><td>{escape(t.op)}</td><td>{escape(t.dtype)} '
        f'{escape(shape_text(t.shape))}</td><td class="n">{human_bytes(t.sent)} sent</td></tr>'
        for t in layer.talks
    )
    return f"<details><summary>{name}</summary><table>{rows}</table></details>"


def _tensor_row(kind: str, tensor: Tensor) -> str:
    name, dtype, shape = tensor
    return (
        f'<tr><td>{kind}</td><td class="name">{escape(name)}</td><td>{escape(dtype)}</td>'
        f"<td>{escape(shape_text(shape))}</td></tr>"
    )
