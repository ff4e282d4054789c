"""What a ``.qcal`` file holds, for people and as a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from calibrators import Histogram, MovingAverage, Statistic
from quantool.report.model import OutputInfo, plain
from quantool.report.summary import Fact
from quantool.report.wording import counts, percent, plural, size, visible
from quantool.stats import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorStatistic:
    """One tensor. count: finite elements seen; counted: those in the histogram; None where a kind does not tell.

    mean: of a share of the elements, where channels were summed.
    channels: how many have statistics of their own; grams: keys of the Gram matrices of layers that read it.
    """

    name: str
    kind: str
    count: int
    nonfinite: int
    observed_min: float | None
    observed_max: float | None
    counted: int | None
    zeros: int | None
    mean: float | None
    channels: int | None
    grams: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsInspection:
    """The whole file. full: every element of large tensors was counted, not an eighth of them."""

    file: OutputInfo
    model_sha256: str
    graph_sha256: str
    samples: int
    sources: tuple[str, ...]
    full: bool
    tensors: tuple[TensorStatistic, ...]

    def to_dict(self) -> dict[str, object]:
        """The fields as strict JSON holds them."""
        return dict(plain(self))


def inspect_statistics(stats: Stats, file: OutputInfo) -> StatsInspection:
    """Everything in a file but the histograms themselves."""
    names = sorted({*stats.tensors, *stats.channels})
    return StatsInspection(
        file=file,
        model_sha256=stats.model_sha256,
        graph_sha256=stats.graph_sha256,
        samples=stats.samples,
        sources=stats.sources,
        full=stats.full,
        tensors=tuple(_tensor(stats, name) for name in names),
    )


def _tensor(stats: Stats, name: str) -> TensorStatistic:
    state, channels = stats.tensors.get(name), stats.channels.get(name)
    seen = None if state is None else state.extrema
    histogram = _histogram(state)
    known = seen is not None and seen.count > 0
    return TensorStatistic(
        name=name,
        kind="channels" if state is None else state.kind,
        count=seen.count if seen else 0,
        nonfinite=seen.nonfinite if seen else 0,
        observed_min=seen.minimum if seen and known else None,
        observed_max=seen.maximum if seen and known else None,
        counted=histogram.counted if histogram else None,
        zeros=histogram.zeros if histogram else None,
        mean=float(channels.means.mean()) if channels and channels.rows else None,
        channels=channels.lows.size if channels else None,
        grams=tuple(sorted(key for key in stats.grams if key == name or key.startswith(f"{name} "))),
    )


def _histogram(state: Statistic | None) -> Histogram | None:
    if isinstance(state, MovingAverage):
        return state.histogram
    return state if isinstance(state, Histogram) else None


def statistics_facts(found: StatsInspection) -> Iterator[Fact]:
    """The file in short."""
    kinds = Counter(tensor.kind for tensor in found.tensors)
    grams = {key for tensor in found.tensors for key in tensor.grams}
    yield Fact("statistics", f"{visible(found.file.path or 'in memory')}, {size(found.file.size_bytes)}")
    yield Fact("samples", f"{found.samples:,}")
    for source in found.sources:
        yield Fact("data", visible(source))
    yield Fact("model", f"sha256 {found.model_sha256[:16]}, normalized graph {found.graph_sha256[:16] or 'unknown'}")
    yield Fact("tensors", f"{plural(len(found.tensors), 'tensor')}: {counts(kinds)}")
    yield Fact("large tensors", "every element counted" if found.full else "an eighth of the elements counted")
    if grams:
        yield Fact("Gram matrices", plural(len(grams), "layer input"))


def statistics_lines(found: StatsInspection) -> Iterator[str]:
    """A heading and a line a tensor, its name last, where it may be as long as it likes."""
    yield f"{'smallest':>10} {'largest':>10} {'mean':>10} {'zeros':>7}  tensor"
    for tensor in found.tensors:
        share = None if not tensor.counted or tensor.zeros is None else tensor.zeros / tensor.counted
        numbers = [f"{_number(n):>10}" for n in (tensor.observed_min, tensor.observed_max, tensor.mean)]
        also = [plural(tensor.channels, "channel")] if tensor.channels else []
        also += [f"{tensor.nonfinite:,} not finite"] if tensor.nonfinite else []
        tail = f"  ({', '.join(also)})" if also else ""
        yield f"{' '.join(numbers)} {'' if share is None else percent(share):>7}  {visible(tensor.name)}{tail}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
