"""How far a quantized tensor is from its float original.

All sums are float64 over pieces of the flat tensors, so no temporary of a tensor's size is made. Elements
that are the same infinity in both (masked scores) are left out. A NaN anywhere makes the figure NaN, and an
infinity in one tensor alone makes it the worst there is or NaN: a comparison that means nothing must not
read as a good one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from quantool.kernels.dtypes import Array

PIECE = 1 << 17


def sqnr_db(reference: Array, test: Array) -> float:
    """Signal to quantization noise ratio 10 * log10(sum(r**2) / sum((r - t)**2)), in dB.

    reference, test: numeric [*S]. Returns inf where the two are equal (also where both are empty), -inf
    where the reference is all zero and the test is not or where only the test holds an infinity, and NaN
    where a value is NaN or only the reference holds an infinity.

    Raises:
        ValueError: the shapes differ.
    """
    _require_same_shape(reference, test)
    signal = noise = 0.0
    for r, t in _pieces(reference, test):
        with np.errstate(invalid="ignore"):
            difference = r - t
        signal += float(np.dot(r, r))
        noise += float(np.dot(difference, difference))
    return float(_ratio_db(np.array(signal), np.array(noise)))


def channel_sqnr_db(reference: Array, test: Array, *, axis: int) -> Array:
    """SQNR of each slice along ``axis``, in dB: float64[S[axis]], with the edge cases of :func:`sqnr_db`.

    Raises:
        ValueError: the shapes differ, or axis is out of range.
    """
    _require_same_shape(reference, test)
    rank = np.ndim(reference)
    if not -rank <= axis < rank:
        raise ValueError(f"axis is {axis}; for rank {rank} it must be in [{-rank}, {rank - 1}].")
    channels = np.shape(reference)[axis]
    r_slices, t_slices = np.moveaxis(np.asarray(reference), axis, 0), np.moveaxis(np.asarray(test), axis, 0)
    signal, noise = np.zeros(channels), np.zeros(channels)
    step = max(1, PIECE // max(1, math.prod(r_slices.shape[1:])))
    for start in range(0, channels, step):
        stop = min(start + step, channels)
        r, t = _comparable(r_slices[start:stop], t_slices[start:stop])
        r, t = r.reshape(stop - start, -1), t.reshape(stop - start, -1)
        with np.errstate(invalid="ignore"):
            difference = r - t
        signal[start:stop] = np.einsum("ij,ij->i", r, r)
        noise[start:stop] = np.einsum("ij,ij->i", difference, difference)
    return _ratio_db(signal, noise)


def worst_channel_sqnr_db(reference: Array, test: Array, *, axis: int) -> float:
    """The least SQNR of a slice along ``axis``, in dB; inf without slices, NaN if any slice's is NaN.

    A slice that is all zero in the reference while the test is not is skipped where another slice carries
    signal: its ratio says -inf whatever the size of the error. It still counts where no slice carries
    signal.

    Raises:
        ValueError: the shapes differ, or axis is out of range.
    """
    ratios = channel_sqnr_db(reference, test, axis=axis)
    with_signal = ratios[~np.isneginf(ratios)]
    chosen = with_signal if with_signal.size else ratios
    return float(np.min(chosen, initial=math.inf))


def cosine(reference: Array, test: Array) -> float:
    """Cosine similarity sum(r * t) / sqrt(sum(r**2) * sum(t**2)).

    Returns 1.0 where both are all zero (or empty), 0.0 where one of the two is, NaN where a value is not
    finite.

    Raises:
        ValueError: the shapes differ.
    """
    _require_same_shape(reference, test)
    product = signal = other = 0.0
    for r, t in _pieces(reference, test):
        product += float(np.dot(r, t))
        signal += float(np.dot(r, r))
        other += float(np.dot(t, t))
    if signal == 0.0 or other == 0.0:
        return 1.0 if signal == other else 0.0
    if not math.isfinite(signal + other):
        return math.nan
    return max(-1.0, min(1.0, product / (math.sqrt(signal) * math.sqrt(other))))


def max_abs_error(reference: Array, test: Array) -> float:
    """Largest absolute difference; 0.0 for empty tensors, NaN where a difference is NaN.

    Raises:
        ValueError: the shapes differ.
    """
    _require_same_shape(reference, test)
    largest = 0.0
    for r, t in _pieces(reference, test):
        with np.errstate(invalid="ignore"):
            piece = float(np.max(np.abs(r - t), initial=0.0))
        if math.isnan(piece):
            return math.nan
        largest = max(largest, piece)
    return largest


def top1_agreement(reference: Array, test: Array, *, axis: int = -1) -> float:
    """Share of rows along ``axis`` whose largest entry stands in the same place in both.

    Ties go to the first entry, as argmax does, and a NaN counts as largest. Returns 1.0 without rows.

    Raises:
        ValueError: the shapes differ, axis is out of range or has no entries.
    """
    _require_same_shape(reference, test)
    rank = np.ndim(reference)
    if not -rank <= axis < rank:
        raise ValueError(f"axis is {axis}; for rank {rank} it must be in [{-rank}, {rank - 1}].")
    if np.shape(reference)[axis] == 0:
        raise ValueError(f"axis is {axis}, which has no entries in shape {list(np.shape(reference))}.")
    same = np.argmax(reference, axis=axis) == np.argmax(test, axis=axis)
    return float(np.mean(same)) if same.size else 1.0


def _require_same_shape(reference: Array, test: Array) -> None:
    if np.shape(reference) != np.shape(test):
        raise ValueError(
            f"test has shape {list(np.shape(test))}; it must be the reference's, {list(np.shape(reference))}."
        )


def _pieces(reference: Array, test: Array) -> Iterator[tuple[Array, Array]]:
    r_flat, t_flat = np.asarray(reference).reshape(-1), np.asarray(test).reshape(-1)
    for start in range(0, r_flat.size, PIECE):
        yield _comparable(r_flat[start : start + PIECE], t_flat[start : start + PIECE])


def _comparable(r: Array, t: Array) -> tuple[Array, Array]:
    """Both in float64, elements that are the same infinity in both set to zero."""
    r, t = r.astype(np.float64), t.astype(np.float64)
    same = np.isinf(r) & (r == t)
    r[same] = t[same] = 0.0
    return r, t


def _ratio_db(signal: Array, noise: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: Array = 10.0 * (np.log10(signal) - np.log10(noise))
    return np.where(noise == 0.0, math.inf, ratio)
