"""Geometry of the pictures, and which layers and tensors are pointed out."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantool.report.advice import added_noise, fix_rows, largest_losses, loss_rows, worst_tensors
from quantool.report.charts import COLUMN_HEIGHT, LABEL_WIDTH, PLOT_HEIGHT, PLOT_WIDTH, columns, layer_plot
from quantool.report.detail import FixRow, Histogram, LayerRow, LayersInfo
from report.examples import report

COUNTS = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)
LEVELS = st.lists(st.none() | st.floats(-300, 300), min_size=1, max_size=60)


def layer(number: int, sqnr_db: float | None, arriving: float | None = None) -> LayerRow:
    """A layer; without dB it is exact."""
    return LayerRow(
        node=f"n{number}", op_type="Conv", tensor=f"t{number}", sqnr_db=sqnr_db, exact=sqnr_db is None,
        input_sqnr_db=arriving,
    )  # fmt: skip


@given(COUNTS, st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_histogram_stays_in_its_box_and_every_column_has_its_height(counts, below, above):
    found = columns(Histogram(low=-1.0, high=1.0, counts=tuple(counts), below=below, above=above), (-0.5, 3.0))
    across = [int(x) for x in re.findall(r"H(\d+)", found.path)]
    tops = [int(y) for y in re.findall(r"V(\d+)", found.path)]
    assert across == sorted(across)
    assert across[-1] == found.count == len(counts)
    assert all(0 <= top <= COLUMN_HEIGHT for top in tops)
    assert found.path.startswith(f"M0 {COLUMN_HEIGHT}")
    assert found.path.endswith(f"V{COLUMN_HEIGHT}Z")
    left, width = found.band
    assert 0 <= left <= len(counts)
    assert left + width <= len(counts) + 0.5


def test_heights_are_logarithmic_so_that_tails_show():
    found = columns(Histogram(low=0.0, high=3.0, counts=(1_000_000, 1000, 0), below=0, above=0), (1.0, 2.0))
    assert found.path == "M0 24V0H1V12H2V24H3V24Z"
    assert found.band == (1.0, 1.0)
    assert columns(Histogram(low=0.0, high=1.0, counts=(0, 0), below=0, above=0), None).band is None


@given(LEVELS)
def test_layers_stay_in_the_plot_and_labels_apart(levels):
    rows = [layer(i, level) for i, level in enumerate(levels)]
    found = layer_plot(rows, rows[:5])
    assert [dot.number for dot in found.dots] == list(range(1, len(rows) + 1))
    assert all(0 < dot.x < PLOT_WIDTH and 0 < dot.y < PLOT_HEIGHT for dot in found.dots)
    labelled = [dot.x for dot in found.dots if dot.labelled]
    assert labelled
    assert all(b - a >= LABEL_WIDTH for a, b in pairwise(labelled))
    assert all(1 <= number <= len(rows) for _, number in found.ticks)
    assert len(found.ticks) <= 10


def test_a_long_graph_is_a_line_with_its_marked_layers():
    rows = [layer(i, 40.0) for i in range(5000)]
    found = layer_plot(rows, rows[10:12])
    assert [dot.number for dot in found.dots] == [11, 12]
    assert found.path.count("L") == 4999


@pytest.mark.parametrize(
    ("row", "noise"),
    [
        (layer(0, None), 0.0), (layer(0, 20.0), 0.01), (layer(0, 20.0, 23.0103), 0.005), (layer(0, 30.0, 20.0), 0.0),
    ],
)  # fmt: skip
def test_a_layer_adds_what_leaves_it_beyond_what_arrives(row, noise):
    assert added_noise(row) == pytest.approx(noise, rel=1e-4)


def test_the_layers_that_add_most_are_told_in_the_order_of_the_graph():
    rows = (layer(0, 50.0), layer(1, 30.0, 50.0), layer(2, 31.0, 30.0), layer(3, 20.0, 31.0), layer(4, None))
    run = replace(report(), layers=LayersInfo(samples=1, candidates=5, measured=5, rows=rows))
    assert [row.node for row in largest_losses(run, 2)] == ["n1", "n3"]
    assert [cells[0] for cells in loss_rows(run)] == ["1", "2", "4"]
    assert loss_rows(replace(report(), layers=None)) == ()


def test_the_option_of_a_fix_names_the_node_for_a_shell_and_a_glob():
    row = FixRow(nodes=("a*b[0] c", "d", "e"), operators=("Conv",), gain_db=3.0, macs_share=0.1)
    (cells,) = fix_rows(replace(report(), fixes=(row,)))
    assert cells[0] == "a*b[0] c, d and 1 more"
    assert shlex.split(cells[-1]) == ["--exclude", "a[*]b[[]0] c"]


def test_the_worst_tensors_are_those_whose_rounding_leaves_least():
    rows = [replace(report().tensors[0], name=str(i), sqnr_db=db) for i, db in enumerate((30.0, None, 10.0, 20.0))]
    assert [row.name for row in worst_tensors(rows, 2)] == ["2", "3"]
