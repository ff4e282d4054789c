"""What a person wants to know of a Report first, in the order that every rendering keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from quantool.recipe import option_flag
from quantool.report.model import NodeRow, Report, Status
from quantool.report.tune import metric_words
from quantool.report.wording import UNKNOWN, counts, decibel, number, percent, plural, size, visible
from quantool.verify.verdict import NOT_WORTH_IT

OUTPUT_HEADER = ("output", "SQNR", "worst channel", "cosine", "largest error", "top-1 agreement")
GATE_HEADER = ("gate", "limit", "value", "result")


@dataclass(frozen=True, slots=True)
class Fact:
    """One line: what, and its value."""

    label: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptGroup:
    """The nodes that stay in float for one reason; text and fix are those of the first."""

    code: str
    text: str
    fix: str
    nodes: tuple[NodeRow, ...]

    @property
    def operators(self) -> str:
        """The operator types among the nodes, with their counts."""
        return counts(Counter(node.op_type for node in self.nodes))


def headline(report: Report) -> str:
    """The gates that fail and the verdict, or how the run ended where it came to none."""
    failing = [option_flag(gate.name) for gate in report.gates if not gate.passed]
    prefix = f"Fails {', '.join(failing)}. " if failing else ""
    if report.verdict:
        return prefix + visible(report.verdict)
    if report.errors:
        return visible(report.errors[0].what)
    return "Done." if report.status == Status.DONE else f"Ended: {report.status}."


def data_line(report: Report) -> str | None:
    """Where the ranges come from: the first line of every rendering."""
    if report.data is None:
        return None
    data = report.data
    if data.held_out is None or data.of_ranges:  # their source says it all
        return f"Data: {visible(data.source)}"
    checked = "verified on held-out samples" if data.held_out else "verified on the same samples"
    tail = f", {checked}" if report.verification is not None and report.command == "quantize" else ""
    read = f", {plural(data.samples, 'sample')}" if data.samples else ""  # none where all that is read verifies
    return f"Data: {visible(data.source)}{read}{tail}"


def is_doubtful(report: Report) -> bool:
    """Whether the run went well and its verdict advises against the result all the same."""
    return report.status == Status.DONE and (report.verdict or "").startswith(NOT_WORTH_IT)


def facts(report: Report) -> tuple[Fact, ...]:
    """The figures of a run; what is not known, and what the command did not decide, is left out."""
    found = (
        ("model", _model(report)),
        ("report", None if report.check is None else visible(report.check.report)),
        ("baseline", None if report.check is None else visible(report.check.baseline)),
        ("output", _output(report)),
        ("quantized", None if report.command == "calibrate" else _quantized(report)),
        ("coverage", _coverage(report)),
        ("latency", _latency(report)),
        ("integer operators", _fused(report)),
        ("left at run time", _left(report)),
        ("accuracy level", _levels(report)),
        ("chosen", _chosen(report)),
        ("text", _text(report)),
        ("metric", None if report.metric is None else metric_words(report.metric)),
        ("memory", _memory(report)),
        ("recipe", None if report.command == "compare" else _recipe(report.recipe)),
    )
    return tuple(Fact(label, value) for label, value in found if value)


def kept_groups(report: Report) -> tuple[KeptGroup, ...]:
    """The nodes kept in float, grouped by reason code, the largest group first; what was folded away comes last."""
    found: dict[str, list[NodeRow]] = {}
    for node in report.nodes:
        if node.decision == "kept" and node.reason is not None and not node.into:
            found.setdefault(node.reason.code, []).append(node)
    groups = [
        KeptGroup(code=code, text=first.text, fix=first.fix, nodes=tuple(nodes))
        for code, nodes in found.items()
        if (first := nodes[0].reason) is not None
    ]
    return tuple(sorted(groups, key=lambda group: (group.code == "folded", -len(group.nodes), group.code)))


def output_rows(report: Report) -> tuple[tuple[str, ...], ...]:
    """One row an output, under OUTPUT_HEADER."""
    if report.verification is None:
        return ()
    return tuple(
        (
            visible(name),
            decibel(found.sqnr_db, exact=found.exact),
            decibel(found.worst_channel_sqnr_db, exact=found.exact),
            "-" if found.cosine is None else f"{found.cosine:.6f}",
            number(found.max_abs_error),
            "-" if found.top1_agreement is None else percent(found.top1_agreement),
        )
        for name, found in report.verification.outputs.items()
    )


def gate_rows(report: Report) -> tuple[tuple[str, ...], ...]:
    """One row a gate, under GATE_HEADER."""
    return tuple(
        (
            option_flag(gate.name),
            number(gate.limit),
            UNKNOWN if gate.value is None else number(gate.value),
            "holds" if gate.passed else "fails",
        )
        for gate in report.gates
    )


def size_ratio(report: Report) -> float | None:
    """Size of the output over size of the model."""
    if report.output is None or report.model is None or not report.model.size_bytes:
        return None
    return report.output.size_bytes / report.model.size_bytes


def _model(report: Report) -> str | None:
    model = report.model
    if model is None:
        return None
    parts = [visible(model.path) if model.path else "in memory"]
    if model.size_bytes is not None:
        parts.append(size(model.size_bytes))
    if model.opset is not None:
        parts.append(f"opset {model.opset}")
    return ", ".join(parts)


def _output(report: Report) -> str | None:
    output = report.output
    if output is None:
        return None
    ratio = size_ratio(report)
    share = "" if ratio is None or report.command == "calibrate" else f" ({percent(ratio)} of the model)"
    return f"{visible(output.path) if output.path else 'in memory'}, {size(output.size_bytes)}{share}"


def _quantized(report: Report) -> str | None:
    if not report.nodes:
        return None
    done = sum(node.decision == "quantized" for node in report.nodes)
    return f"{done} of {plural(len(report.nodes), 'node')}"


def _coverage(report: Report) -> str | None:
    found = report.coverage
    if found is None:
        return None
    return (
        f"{percent(found.nodes)} of nodes, {percent(found.macs)} of multiply-adds, "
        f"{percent(found.weight_bytes)} of weight bytes"
    )


def _latency(report: Report) -> str | None:
    found = report.latency
    if found is None:
        return None
    change = f"{found.speedup:.2f} times as fast"
    if found.interval is not None:
        change += f" (95 %: {found.interval[0]:.2f} to {found.interval[1]:.2f})"
    return f"float {number(found.float_ms)} ms, quantized {number(found.quantized_ms)} ms: {change}"


def _fused(report: Report) -> str | None:
    return None if report.runtime is None else counts(report.runtime.fused)


def _left(report: Report) -> str | None:
    return None if report.runtime is None else counts(report.runtime.left)


def _text(report: Report) -> str | None:
    """Perplexity and divergence of a language model."""
    outputs = {} if report.verification is None else report.verification.outputs
    for found in outputs.values():
        if found.perplexity is not None or found.kl is not None:
            return (
                f"perplexity {number(found.float_perplexity)} in float, {number(found.perplexity)} quantized; "
                f"KL divergence {number(found.kl)} nats a token"
            )
    return None


def _levels(report: Report) -> str | None:
    """Of MatMulNBits."""
    if report.runtime is None or not report.runtime.accuracy_levels:
        return None
    return ", ".join(map(str, report.runtime.accuracy_levels))


def _chosen(report: Report) -> str | None:
    """What was tried on the samples, the choice first."""
    trials = sorted(report.trials, key=lambda trial: not trial.chosen)
    if len(trials) < 2:
        return None
    listed = [f"{visible(trial.name)} {decibel(trial.score_db)}" for trial in trials]
    return f"{listed[0]} (on the samples; also tried: {'; '.join(listed[1:])})"


def _memory(report: Report) -> str | None:
    """Whether the run stayed within its bound, as far as looking every few milliseconds tells."""
    found = report.memory
    if found is None:
        return None
    seen = found.measured_peak_bytes
    stayed = "beyond" if seen is not None and seen > found.bound_bytes else "within"
    parts = [] if found.groups is None else [f"{plural(found.groups, 'group')} of tensors"]
    parts += [f"{found.passes} passes over the data"] if (found.passes or 0) > 1 else []
    parts += [] if seen is None else [f"largest private memory seen {size(seen)}"]
    tail = f" ({'; '.join(parts)})" if parts else ""
    return f"{stayed} {size(found.bound_bytes)}{tail}"


def _recipe(recipe: Mapping[str, object] | None) -> str | None:
    if recipe is None:
        return None
    names = ("mode", "format", "target", "weights", "activations", "granularity", "calibrator", "effort")
    return ", ".join(f"{name} {visible(str(recipe[name]))}" for name in names if recipe.get(name) is not None)
