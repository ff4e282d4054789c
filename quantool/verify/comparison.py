"""Float outputs against quantized ones, sample by sample; nothing of a sample is kept but sums.

Sums are float64. SQNR = 10 log10(sum r^2 / sum (r - t)^2) over all elements of all samples; the sample mean of
ratios would let one easy sample hide a hard one. Values that are not finite count as equal where both sides have
the same one (-inf from a mask, NaN), and as infinite noise where not: that must never read as a good result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quantool.data.next_tokens import LOGITS
from quantool.errors import VerificationError
from quantool.measured import OutputComparison
from quantool.schema import AnyArray, Feed
from quantool.verify.language import TextFigures, is_cache, is_causal

_Sums = NDArray[np.float64]

#: a channel whose energy is below this share of the largest one's is silent: its ratio says nothing. Scores of
#: 0..1 beside boxes of 0..640 are 2e-6, softmax columns that are never chosen 1e-12 and less.
SILENT_SHARE: Final = 1e-10
#: an axis with more entries is no channel axis
MOST_CHANNELS: Final = 65536
_PIECE: Final = 1 << 17


class Comparator:
    """Compares outputs of two models over samples.

    Channels: axis 1 and the last axis of outputs of rank 2 and more, as long as their lengths stay the same over
    all samples. Top-1 agreement: the share of rows along the last axis (rank 2 and more, more than one entry)
    whose largest entry stands in the same place; for integer and bool outputs, the share of equal elements. Of causal
    language models the logits are judged as such too, and the cache has no top-1.
    """

    def __init__(self) -> None:
        self.samples = 0
        self._outputs: dict[str, _FloatOutput | _DiscreteOutput] = {}
        self._text: TextFigures | None = None

    def add(
        self, reference: Mapping[str, AnyArray], test: Mapping[str, AnyArray], feed: Feed = MappingProxyType({})
    ) -> None:
        """Fold in one sample: the float model's outputs, the quantized model's, and what both were fed.

        Raises:
            VerificationError: an output is missing, or its shape or kind differs.
        """
        for name, expected in reference.items():
            actual = _counterpart(name, expected, test)
            if name not in self._outputs:
                self._outputs[name] = _FloatOutput() if _is_float(expected) else _DiscreteOutput()
            self._outputs[name].add(expected, actual)
        if is_causal(feed, reference):
            self._text = self._text or TextFigures()
            self._text.add(reference[LOGITS], test[LOGITS], feed)
        self.samples += 1

    def result(self) -> dict[str, OutputComparison]:
        """The figures so far, by output."""
        found = {name: output.result() for name, output in self._outputs.items()}
        text = self._text
        if text is None:
            return found
        found = {name: replace(o, top1_agreement=None) if is_cache(name) else o for name, o in found.items()}
        logits = replace(found[LOGITS], kl=text.kl, float_perplexity=text.float_perplexity, perplexity=text.perplexity)
        return {**found, LOGITS: logits}


def relative_differences(reference: Mapping[str, AnyArray], test: Mapping[str, AnyArray]) -> dict[str, float]:
    """Max |r - t| / max |r| of each output; for integer and bool outputs the share of unequal elements.

    0.0 where equal (values that are not finite included), inf where a value is finite on one side alone or the
    reference is all zero and the test is not.

    Raises:
        VerificationError: an output is missing, or its shape or kind differs.
    """
    return {name: _relative(array, _counterpart(name, array, test)) for name, array in reference.items()}


def same(reference: Mapping[str, AnyArray], test: Mapping[str, AnyArray], *, rtol: float) -> bool:
    """Whether two float models agree: every relative difference is at most rtol."""
    return all(difference <= rtol for difference in relative_differences(reference, test).values())


def signal_and_noise(reference: AnyArray, test: AnyArray) -> tuple[float, float]:
    """Sum r^2 and sum (r - t)^2 over two arrays of one shape; noise is infinite where one side alone is not finite."""
    signal = noise = 0.0
    for r, t in _pieces(reference.reshape(-1, 1), test.reshape(-1, 1)):
        difference = (r - t).ravel()
        with np.errstate(invalid="ignore", over="ignore"):
            noise += float(difference @ difference)
        signal += float(r.ravel() @ r.ravel())
    return signal, noise


def ratio_db(signal: float, noise: float) -> float:
    """10 log10(signal / noise); inf without noise, -inf where the ratio means nothing."""
    return float(_ratio_db(np.array(signal), np.array(noise)))


def _counterpart(name: str, expected: AnyArray, test: Mapping[str, AnyArray]) -> AnyArray:
    if name not in test:
        raise VerificationError(
            "output-missing",
            f"The output '{name}' of the float model is missing from the quantized one.",
            where=name,
            fix="Report this model: names of outputs must not change.",
        )
    actual = test[name]
    if actual.shape == expected.shape and _is_float(actual) == _is_float(expected):
        return actual
    raise VerificationError(
        "output-differs",
        f"The output '{name}' is {actual.dtype}{list(actual.shape)}; "
        f"the float model gives {expected.dtype}{list(expected.shape)}.",
        where=name,
        fix="Exclude the nodes that make this output, or report this model.",
    )


def _is_float(array: AnyArray) -> bool:
    return array.dtype.name.startswith(("float", "bfloat"))


def _relative(reference: AnyArray, test: AnyArray) -> float:
    if not _is_float(reference):
        return float(np.mean(reference != test)) if reference.size else 0.0
    largest = signal = 0.0
    for r, t in _pieces(reference.reshape(-1, 1), test.reshape(-1, 1)):
        largest = max(largest, float(np.max(np.abs(r - t), initial=0.0)))
        signal = max(signal, float(np.max(np.abs(r), initial=0.0)))
    if largest == 0.0:
        return 0.0
    return largest / signal if signal else math.inf


def _pieces(reference: AnyArray, test: AnyArray) -> Iterator[tuple[_Sums, _Sums]]:
    """Rows in float64, a bounded number at a time.

    Equal values that are not finite become equal zeros; others leave an infinite difference, the reference zero.
    """
    step = max(1, _PIECE // max(1, reference.shape[1]))
    for start in range(0, reference.shape[0], step):
        r = reference[start : start + step].astype(np.float64)
        t = test[start : start + step].astype(np.float64)
        odd = ~(np.isfinite(r) & np.isfinite(t))
        if odd.any():
            equal = (r == t) | (np.isnan(r) & np.isnan(t))
            t = np.where(odd, np.where(equal, 0.0, np.inf), t)
            r = np.where(odd, 0.0, r)
        yield r, t


@dataclass(slots=True)
class _Energy:
    """Signal and noise of each channel along one axis."""

    signal: _Sums
    noise: _Sums


@dataclass(slots=True)
class _FloatOutput:
    """Sums over the samples of one floating-point output."""

    signal: float = 0.0
    noise: float = 0.0
    product: float = 0.0
    test_energy: float = 0.0
    largest: float = 0.0
    rows: int = 0
    agreed: int = 0
    channels: dict[int, _Energy | None] = field(default_factory=dict)

    def add(self, reference: AnyArray, test: AnyArray) -> None:
        """Fold in one sample."""
        axes = {axis % reference.ndim for axis in (1, -1)} if reference.ndim > 1 else set()
        for axis in sorted(axes):
            self._add_channels(axis, reference, test)
        for r, t in _pieces(reference.reshape(-1, 1), test.reshape(-1, 1)):
            with np.errstate(invalid="ignore", over="ignore"):
                difference = np.abs(r - t).ravel()
                self.noise += float(difference @ difference)
                self.product += float(r.ravel() @ np.where(np.isfinite(t), t, 0.0).ravel())
                self.test_energy += float(t.ravel() @ t.ravel())
            self.signal += float(r.ravel() @ r.ravel())
            self.largest = max(self.largest, float(np.max(difference, initial=0.0)))
        if reference.ndim > 1 and reference.shape[-1] > 1:
            agreed = np.argmax(reference, axis=-1) == np.argmax(test, axis=-1)
            self.rows += agreed.size
            self.agreed += int(np.count_nonzero(agreed))

    def _add_channels(self, axis: int, reference: AnyArray, test: AnyArray) -> None:
        count = reference.shape[axis]
        empty = _Energy(np.zeros(count), np.zeros(count))
        energy = self.channels.setdefault(axis, empty if 1 < count <= MOST_CHANNELS else None)
        if energy is None or energy.signal.size != count:
            self.channels[axis] = None  # lengths that change with the sample are positions, not channels
            return
        rows = (np.moveaxis(array, axis, -1).reshape(-1, count) for array in (reference, test))
        for r, t in _pieces(*rows):
            energy.signal += np.einsum("ij,ij->j", r, r)
            energy.noise += np.einsum("ij,ij->j", r - t, r - t)

    def result(self) -> OutputComparison:
        """The figures of this output."""
        if self.noise == 0.0:
            agreement = 1.0 if self.rows else None
            return _comparison(cosine=1.0, max_abs_error=0.0, top1_agreement=agreement, exact=True)
        ratios = [_worst(energy) for energy in self.channels.values() if energy is not None]
        worst = min((ratio for ratio in ratios if ratio is not None), default=None)
        return _comparison(
            sqnr_db=float(_ratio_db(np.array(self.signal), np.array(self.noise))),
            worst_channel_sqnr_db=worst,
            cosine=self._cosine(),
            max_abs_error=self.largest,
            top1_agreement=self.agreed / self.rows if self.rows else None,
        )

    def _cosine(self) -> float | None:
        norm = math.sqrt(self.signal) * math.sqrt(self.test_energy)
        if norm == 0.0 or not math.isfinite(norm):
            return None
        return max(-1.0, min(1.0, self.product / norm))


@dataclass(slots=True)
class _DiscreteOutput:
    """Counts over the samples of one integer, bool or string output."""

    elements: int = 0
    equal: int = 0

    def add(self, reference: AnyArray, test: AnyArray) -> None:
        """Fold in one sample."""
        self.elements += reference.size
        self.equal += int(np.count_nonzero(reference == test))

    def result(self) -> OutputComparison:
        """The figures of this output."""
        share = self.equal / self.elements if self.elements else 1.0
        return _comparison(top1_agreement=share, exact=self.equal == self.elements)


def _comparison(*, exact: bool = False, **figures: float | None) -> OutputComparison:
    names = ("sqnr_db", "worst_channel_sqnr_db", "cosine", "max_abs_error", "top1_agreement")
    return OutputComparison(exact=exact, **{name: figures.get(name) for name in names})


def _worst(energy: _Energy) -> float | None:
    """The least SQNR of the channels that carry signal, None without any."""
    audible = energy.signal > SILENT_SHARE * float(energy.signal.max())
    if not audible.any():
        return None
    return float(_ratio_db(energy.signal[audible], energy.noise[audible]).min())


def _ratio_db(signal: _Sums, noise: _Sums) -> _Sums:
    """10 log10(signal / noise); inf without noise, -inf where the ratio means nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: _Sums = 10.0 * (np.log10(signal) - np.log10(noise))
    return np.where(noise == 0.0, np.inf, np.where(np.isfinite(signal + noise), ratio, -np.inf))
