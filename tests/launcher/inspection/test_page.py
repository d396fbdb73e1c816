"""The page that draws a plan: well-formed, self-contained, and nothing in a model's names can break it."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.inspection.inspection import Inspection, Layer, Talk, Weight
from launcher.inspection.page import MAX_COLUMNS, _columns, describe_mesh, render
from sharding.slices.mesh import Mesh
from sharding.slices.placement import REPLICATED, Split

VOID = {"meta"}


class Page(HTMLParser):
    """Every tag closed in order; the texts; and the cells of each row of the plan."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.bands: list[tuple[int, str]] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.keys: list[tuple[str | None, str]] = []
        self.columns = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        found = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "i" and self.open[-3:] == ["p", "span", "i"]:
            self.keys.append((found.get("class"), ""))
        if tag == "small":
            self.columns += 1
        if tag == "td" and found.get("class") == "band":
            self.bands.append((int(found["colspan"] or 0), ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())
        if self.open[-2:] == ["p", "span"]:
            self.keys[-1] = (self.keys[-1][0], data)
        if self.open and self.open[-1] == "td" and self.bands and not self.bands[-1][1] and "sent" in data:
            self.bands[-1] = (self.bands[-1][0], data)


def inspection(mesh: Mesh, name: str = "encoder.0.w") -> Inspection:
    """One layer a stage, each with a split and a whole weight and an AllReduce."""
    layers = tuple(
        Layer(
            f"encoder.{stage}",
            stage,
            (
                Weight(name, Split(0), "float32", (4, 1000), 16000, 8000),
                Weight(f"{name}.bias", REPLICATED, "float32", (250,), 1000, 1000),
            ),
            (Talk("AllReduce", name, "float32", ("batch", None, 4), 64, 64),),
        )
        for stage in range(mesh.length("pipeline"))
    )
    return Inspection(name, mesh, 1, ((name, "int64", ("batch", 4)),), (), layers, {"TopK": 2})


@pytest.mark.parametrize(
    ("mesh", "columns", "bands"),
    [
        (Mesh.of(tensor=2), 2, [2]),
        (Mesh.of(data=2, pipeline=2, tensor=2), 8, [2, 2, 2, 2]),
        (Mesh.of(tensor=2, pipeline=2), 4, [1, 1, 1, 1]),
        (Mesh.of(pipeline=4, tensor=8), 4, [1, 1, 1, 1]),
    ],
)
def test_ranks_are_columns_and_collectives_span_the_ranks_that_take_part(
    mesh: Mesh, columns: int, bands: list[int]
) -> None:
    page = Page(render(inspection(mesh)))
    assert page.open == []
    assert page.columns == columns
    assert [span for span, _ in page.bands] == bands
    assert "1 AllReduce: 64 B sent" in page.texts
    assert "9 kB" in page.texts
    assert "2 TopK" in page.texts


@given(st.text(max_size=40))
def test_no_name_can_break_the_page(name: str) -> None:
    page = Page(render(inspection(Mesh.of(tensor=2), f"<script>alert('{name}')</script>\"&amp;")))
    assert page.open == []
    assert "script" not in {key for key, _ in page.attributes}


@pytest.mark.parametrize(("ranks", "kind"), [(8, "plan"), (16, "plan many"), (32, "plan")])
def test_many_columns_are_drawn_narrow(ranks: int, kind: str) -> None:
    assert f'<table class="{kind}">' in render(inspection(Mesh.of(tensor=ranks)))


def test_a_colour_and_what_it_means_are_never_on_two_lines() -> None:
    text = render(inspection(Mesh.of(tensor=2)))
    assert Page(text).keys == [
        ("split", "held by this rank alone, or by its copies"),
        ("whole", "whole on every rank of the stage"),
        ("band", "ranks talk"),
    ]
    assert ".key span { display: inline-block; white-space: nowrap;" in text


def test_the_page_refers_to_nothing_outside_itself() -> None:
    text = render(inspection(Mesh.of(tensor=2)))
    assert not {"src", "href"} & {key for key, _ in Page(text).attributes}
    assert "url(" not in text and "@import" not in text and "<script" not in text


@pytest.mark.parametrize(
    ("mesh", "micro", "dims", "said"),
    [
        (Mesh.of(tensor=1), 1, {}, "1 rank; bytes sent are for a batch of 1 and 64 for other symbols"),
        (Mesh.of(tensor=2), 1, {"b": 3}, "2 ranks (2 tensor); bytes sent are for b=3"),
        (
            Mesh.of(pipeline=2, tensor=2),
            2,
            {"b": 3, "s": 4},
            "4 ranks (2 pipeline × 2 tensor), 2 micro-batches; bytes sent are for b=3, s=4",
        ),
    ],
)
def test_what_a_mesh_is(mesh: Mesh, micro: int, dims: dict[str, int], said: str) -> None:
    assert describe_mesh(replace(inspection(mesh), micro_batches=micro, dims=dims)) == said


@pytest.mark.parametrize(
    ("mesh", "title", "places"),
    [
        (Mesh.of(tensor=MAX_COLUMNS), "rank 0", [f"tensor {rank}" for rank in range(MAX_COLUMNS)]),
        (Mesh.of(tensor=MAX_COLUMNS + 1), "every rank", [f"{MAX_COLUMNS + 1} ranks"]),
        (Mesh.of(pipeline=2, tensor=MAX_COLUMNS), "stage 0", [f"{MAX_COLUMNS} ranks"] * 2),
        (Mesh.of(data=2, tensor=1), "rank 0", ["data 0", "data 1"]),
    ],
)
def test_many_ranks_alike_share_a_column(mesh: Mesh, title: str, places: list[str]) -> None:
    columns = _columns(inspection(mesh))
    assert columns[0].title == title and [column.place for column in columns] == places


def test_a_warning_is_shown_and_nothing_is_not() -> None:
    plain = inspection(Mesh.of(tensor=2))
    assert "Warning" not in render(plain) and "hold a large weight whole" in render(plain)
    text = render(replace(plain, warning="a < b", whole={}))
    assert "<strong>Warning:</strong> a &lt; b." in text and "hold a large weight whole" not in text
