"""The verdict: one plain sentence that says what was won, what it cost, and whether it was worth it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quantool.measured import Latency, OutputComparison
from quantool.schema import Mode

#: measured speedups this close to 1 are within the noise of a busy machine
EVEN: Final = 0.03
#: below this the noise carries nearly half of the signal's amplitude
NOISE_SQNR_DB: Final = 6.0
#: a channel is lost where it reads less than LOST_SQNR_DB and this much less than the whole output
LOST_GAP_DB: Final = 15.0
LOST_SQNR_DB: Final = 10.0
#: from this many times the float model's perplexity on, a language model has lost what made it useful
WORSE_TEXT: Final = 1.5
#: below this share of multiplications the gain is bounded by what stays float
LOW_COVERAGE: Final = 0.5

#: from here on MatMulNBits rounds activations to 8 bits
ROUNDING_LEVEL: Final = 4
#: how a verdict begins that advises against the result
NOT_WORTH_IT: Final = "Not worth it"
#: what to try where integer activations lose an output
_MORE_EXACT: Final = (
    "`--mode dynamic` (MatMul and Gemm alone) and `--mode weight-only` keep more of it; "
    "`quantool tune` searches for what keeps the outputs."
)
_SLOWER: Final = "slower than float"
_ONE_CONVOLUTION: Final = "1 convolution turns its weights"


#: what each mode would do in place of another that turned out slower than float
_OTHER_MODES: Final = {
    Mode.STATIC: "`--mode dynamic` quantizes MatMul and Gemm alone, `--mode weight-only` saves size alone",
    Mode.DYNAMIC: "`--mode static` quantizes convolutions too, `--mode weight-only` saves size alone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a verdict rests on.

    Sizes are of the whole model, external data included. latency: None where not measured. outputs: comparisons
    by name, empty where outputs were not compared; not_compared: why not, in a few words;
    weights_db: then the SQNR of the worst weight. samples: compared feeds.
    held_out: whether they were left out of calibration, None where nothing was calibrated or that is unknown.
    coverage: share of multiplications that are quantized, None where unknown. float_convolutions: how many compute
    in float with weights that are stored as integers. accuracy_levels: those at which MatMulNBits ran. elsewhere: the
    target where it is not this machine's runtime.
    """

    mode: Mode
    float_bytes: int
    quantized_bytes: int
    latency: Latency | None = None
    not_compared: str = "no data"
    weights_db: float | None = None
    outputs: Mapping[str, OutputComparison] = field(default_factory=dict)
    samples: int = 0
    held_out: bool | None = None
    coverage: float | None = None
    float_convolutions: int = 0
    accuracy_levels: tuple[int, ...] = ()
    elsewhere: str | None = None

    def __post_init__(self) -> None:
        if self.float_bytes <= 0 or self.quantized_bytes <= 0:
            raise ValueError(f"sizes are {self.float_bytes} and {self.quantized_bytes}; they must be positive.")


def verdict(evidence: Evidence) -> str:
    """One sentence, warnings of lost channels and low coverage after it."""
    flaws = _flaws(evidence)
    speed_is_a_flaw = any(flaw.startswith(_SLOWER) for flaw in flaws)
    speed = () if speed_is_a_flaw else _speed(evidence)
    figures = ", ".join((_size(evidence), *speed, *_accuracy(evidence)))
    sentence = f"{NOT_WORTH_IT}: {'; '.join(flaws)}; {figures}." if flaws else f"{figures}."
    remarks = (
        _lost_channel(evidence),
        _low_coverage(evidence),
        _untimed(evidence),
        _levels(evidence.accuracy_levels),
        _elsewhere(evidence),
    )
    return " ".join((sentence[0].upper() + sentence[1:], *(remark for remark in remarks if remark)))


def other_ways(evidence: Evidence) -> str:
    """What to try where a result is slower than float or lost an output; "" where it is fine, or wanted for size."""
    latency, mode = evidence.latency, evidence.mode
    if latency is not None and _is_slower(latency) and mode in _OTHER_MODES:
        return f"{_OTHER_MODES[mode]}; `quantool tune` searches modes and operators by measured time."
    if mode is Mode.STATIC and (_is_noise(evidence) or _lost_channel(evidence)):
        return _MORE_EXACT
    return ""


def _flaws(evidence: Evidence) -> list[str]:
    """Why the result is not worth having; size alone is worth having where only weights are quantized."""
    flaws = []
    smaller = evidence.quantized_bytes < evidence.float_bytes
    latency = evidence.latency
    for_size = evidence.mode is Mode.WEIGHT_ONLY and smaller
    if latency is not None and _is_slower(latency) and not for_size:
        flaws.append(f"{_SLOWER} ({latency.speedup:.2f}x)")
    if not smaller and (latency is None or not _is_faster(latency)):
        flaws.append("neither smaller nor faster" if latency is not None else "not smaller")
    if _is_noise(evidence):
        flaws.append(f"the output '{_worst_output(evidence)[0]}' is mostly noise")
    flaws += [f"perplexity is {growth:.1f} times that of float" for growth in _growth(evidence) if growth > WORSE_TEXT]
    return flaws


def _is_noise(evidence: Evidence) -> bool:
    _, worst = _worst_output(evidence)
    return worst is not None and worst.sqnr_db is not None and worst.sqnr_db < NOISE_SQNR_DB


def _growth(evidence: Evidence) -> list[float]:
    """Perplexity over the float model's, where the outputs have it."""
    return [
        o.perplexity / o.float_perplexity
        for o in evidence.outputs.values()
        if o.perplexity is not None and o.float_perplexity
    ]


def _size(evidence: Evidence) -> str:
    ratio = evidence.float_bytes / evidence.quantized_bytes
    if f"{ratio:.1f}" == "1.0":
        return "same size"
    return f"{ratio:.1f}x smaller" if ratio > 1 else f"{1 / ratio:.1f}x larger"


def _speed(evidence: Evidence) -> tuple[str, ...]:
    if evidence.latency is None:
        return ()
    latency = evidence.latency
    if _is_slower(latency):
        return (f"but {_SLOWER} ({latency.speedup:.2f}x)",)
    if _is_faster(latency):
        digits = 1 if latency.speedup >= 1.1 else 2
        return (f"{latency.speedup:.{digits}f}x faster",)
    return ("as fast as float",) if latency.is_clear else ("no significant difference in speed",)


def _is_slower(latency: Latency) -> bool:
    return latency.is_clear and latency.speedup < 1 - EVEN


def _is_faster(latency: Latency) -> bool:
    return latency.is_clear and latency.speedup > 1 + EVEN


def _accuracy(evidence: Evidence) -> tuple[str, ...]:
    name, worst = _worst_output(evidence)
    if worst is None:
        return (f"outputs were not compared ({evidence.not_compared})", *_weights(evidence.weights_db))
    kind = "held-out sample" if evidence.held_out else "sample"
    where = f"on {evidence.samples} {kind}{'s' if evidence.samples != 1 else ''}"
    if evidence.held_out is False:
        where += " that also calibrated"
    several = len(evidence.outputs) > 1
    if all(output.exact for output in evidence.outputs.values()):
        return (f"outputs equal {where}",)
    words = []
    if worst.sqnr_db is not None and math.isfinite(worst.sqnr_db):
        words.append(f"{f'worst SQNR ({name!r})' if several else 'SQNR'} {worst.sqnr_db:.1f} dB")
    shares = [o.top1_agreement for o in evidence.outputs.values() if o.top1_agreement is not None]
    if shares:
        words.append(f"{'worst ' if len(shares) > 1 else ''}top-1 agreement {100 * min(shares):.1f} %")
    words += [
        f"perplexity {o.float_perplexity:.4g} to {o.perplexity:.4g}"
        for o in evidence.outputs.values()
        if o.perplexity is not None and o.float_perplexity is not None
    ]
    words[-1:] = [f"{words[-1]} {where}"] if words else [f"outputs compared {where}"]
    return tuple(words)


def _weights(sqnr_db: float | None) -> tuple[str, ...]:
    if sqnr_db is None:
        return ()
    return ("weights are exact",) if sqnr_db == math.inf else (f"the worst weight has {sqnr_db:.1f} dB",)


def _worst_output(evidence: Evidence) -> tuple[str, OutputComparison | None]:
    """The output of the least SQNR, else the first."""
    outputs = evidence.outputs
    rated = {name: o.sqnr_db for name, o in outputs.items() if o.sqnr_db is not None}
    if rated:
        name = min(rated, key=rated.__getitem__)
        return name, outputs[name]
    return next(iter(outputs.items()), ("", None))


def _lost_channel(evidence: Evidence) -> str:
    for name, output in evidence.outputs.items():
        whole, worst = output.sqnr_db, output.worst_channel_sqnr_db
        if whole is None or worst is None:
            continue
        if worst < LOST_SQNR_DB and worst < whole - LOST_GAP_DB:
            return (
                f"One channel lost: '{name}' reads {whole:.1f} dB as a whole and {worst:.1f} dB in its worst channel."
            )
    return ""


def _low_coverage(evidence: Evidence) -> str:
    if evidence.coverage is None or evidence.coverage >= LOW_COVERAGE:
        return ""
    return f"Only {100 * evidence.coverage:.0f} % of the multiplications are quantized."


def _untimed(evidence: Evidence) -> str:
    """Where no one timed it: the runtime expands such weights anew in every run, which was slower wherever measured."""
    count = evidence.float_convolutions
    if evidence.latency is not None or not count:
        return ""
    who, they = (f"{count} convolutions turn their weights", "them") if count > 1 else (_ONE_CONVOLUTION, "it")
    return f"{who} back into float in every run: expect {they} to be {_SLOWER}."


def _levels(levels: tuple[int, ...]) -> str:
    """How far MatMulNBits rounded its activations: at other levels outputs and speed differ."""
    if not levels:
        return ""
    rounded = " (activations rounded to 8 bits)" if ROUNDING_LEVEL in levels else ""
    shown = " and ".join(map(str, levels))
    return f"Its MatMulNBits ran at accuracy level {shown}{rounded}, the runtime's default for this model."


def _elsewhere(evidence: Evidence) -> str:
    if evidence.latency is None or evidence.elsewhere is None:
        return ""
    return f"The speed is that of this machine's CPU; the target {evidence.elsewhere} may differ."
