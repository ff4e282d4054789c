"""Cutting a tensor into slabs changes nothing: every element keeps its parameter, and none is left out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantool.kernels import dequantize_linear, parameter_source, quantize_linear
from quantool.kernels.flat_reader import FlatReader
from quantool.kernels.granularity import Layout, expand, slabs
from quantool.kernels.parameter_source import ParameterSource

sizes = st.integers(0, 9)
layouts = st.builds(Layout, sizes, st.integers(1, 9), sizes, st.integers(1, 5), st.booleans()).map(
    # Per axis means one entry a block.
    lambda v: v if v.blocked else Layout(v.outer, v.size, v.inner, 1, False)
)


def parameters(layout: Layout) -> np.ndarray:
    shape = layout.parameter_shape
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def element_parameters(layout: Layout) -> np.ndarray:
    """The definition: element [o, d, i] takes parameter [o, d // block, i]."""
    whole = np.repeat(parameters(layout), layout.block, axis=1)[:, : layout.size]
    return np.broadcast_to(whole, (layout.outer, layout.size, layout.inner)).reshape(-1)


@given(layouts, st.integers(1, 40))
def test_slabs_cover_the_tensor_once_and_in_order(layout: Layout, limit: int) -> None:
    position = 0
    for slab in slabs(layout, limit):
        assert slab.start == position
        extents = [s.stop - s.start for s in (slab.outer, slab.size, slab.inner)]
        assert slab.stop - slab.start == np.prod(extents) > 0
        assert slab.stop - slab.start <= limit
        position = slab.stop
    assert position == layout.outer * layout.size * layout.inner


@given(layouts, st.integers(1, 40))
def test_every_element_gets_its_own_parameter(layout: Layout, limit: int) -> None:
    want, source = element_parameters(layout), ParameterSource(parameters(layout), layout)
    for slab in slabs(layout, limit):
        for got in (expand(parameters(layout), layout, slab), source.flat(slab)):
            full = np.broadcast_to(got, (slab.stop - slab.start,))
            np.testing.assert_array_equal(full, want[slab.start : slab.stop])


@given(layouts, st.integers(1, 40), st.booleans())
@pytest.mark.parametrize(("run", "tile"), [(1024, 1 << 14), (1, 1 << 14), (1024, 8)])
def test_an_operation_meets_the_parameters_in_every_form(
    run: int, tile: int, layout: Layout, limit: int, in_place: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parameter_source, "BROADCAST_RUN", run)
        patch.setattr(parameter_source, "TILE_ELEMENTS", tile)
        want, source = element_parameters(layout), ParameterSource(parameters(layout), layout)
        for slab in slabs(layout, limit):
            values = np.ones(slab.stop - slab.start, np.float32)
            out = values if in_place else np.empty_like(values)
            source.apply(np.add, values, slab, out)
            np.testing.assert_array_equal(out, want[slab.start : slab.stop] + 1)


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.integers(0, 500),
    st.integers(0, 500),
)
def test_a_reader_of_a_strided_tensor_reads_it_in_order(shape: list[int], start: int, length: int) -> None:
    x = np.arange(np.prod(shape)).reshape(shape).T[..., ::-1]
    stop = min(start + length, x.size)
    if start < stop:
        np.testing.assert_array_equal(FlatReader(x)[start:stop], x.reshape(-1)[start:stop])


# Shapes above the slab size of 192 Ki elements, so that each kind of cut occurs.
LARGE = {
    "rows of 4096": ((65, 4096), 0, 0),
    "rows of 9": ((40_000, 9), 0, 0),
    "one long row": ((2, 200_001), 0, 0),
    "last axis": ((300, 1001), 1, 0),
    "last axis longer than a slab": ((3, 150_001), 1, 0),
    "convolution, axis 1": ((70, 64, 9, 9), 1, 0),
    "blocks along the last axis": ((300, 1024), 1, 32),
    "a partial block in every row": ((300, 1001), 1, 32),
    "a block longer than a slab": ((2, 300_001), 1, 200_000),
    "blocks along the first axis": ((1001, 300), 0, 32),
    "blocks along the middle axis": ((5, 100, 700), 1, 32),
    "blocks of long runs": ((2, 201, 1100), 1, 8),
    "rows longer than a slab, in blocks": ((5, 150_001), 0, 2),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("shape", "axis", "block"), LARGE.values(), ids=LARGE)
def test_large_tensors_equal_one_plain_expression(shape: tuple[int, ...], axis: int, block: int, threads: int) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape, dtype=np.float32)
    x.reshape(-1)[rng.integers(0, x.size, 20)] = np.nan
    parameter_shape = tuple(-(-n // max(block, 1)) if i == axis else n for i, n in enumerate(shape))
    parameter_shape = parameter_shape if block else (shape[axis],)
    scale = rng.uniform(0.01, 0.02, parameter_shape).astype(np.float32)
    zero = rng.integers(0, 256, parameter_shape).astype(np.uint8)
    whole_scale, whole_zero = (_expanded(v, shape, axis, block) for v in (scale, zero.astype(np.float32)))

    codes = quantize_linear(x, scale, zero, axis=axis, block_size=block, threads=threads)
    want = np.clip(np.rint(x / whole_scale) + whole_zero, 0, 255)
    np.testing.assert_array_equal(codes, np.where(np.isnan(x), 0, want))

    back = dequantize_linear(codes, scale, zero, axis=axis, block_size=block, threads=threads)
    np.testing.assert_array_equal(back, (codes - whole_zero) * whole_scale)


def _expanded(values: np.ndarray, shape: tuple[int, ...], axis: int, block: int) -> np.ndarray:
    if not block:
        return values.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.repeat(values, block, axis=axis).take(np.arange(shape[axis]), axis=axis)
