"""What an option alone rules out, and pairs that no model could satisfy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from quantool.elements import ELEMENTS
from quantool.errors import OptionError
from quantool.metrics import METRICS, is_metric
from quantool.recipe.choices import OF_STATIC, OF_WEIGHTS, Algorithm, GraphIO
from quantool.recipe.rules import FLOAT, Rule
from quantool.schema import Format, Mode
from quantool.values import BadValueError, block_size_of, nearest, parse_target_size

OUTPUT_GATES: Final[tuple[str, ...]] = ("min_sqnr", "min_agreement", "min_speedup", "max_drop")
"""The gates that need the result to run; size and coverage are known without."""

_COUNTS: Final = ("samples", "batch_size", "threads", "memory", "shard_size")
_GATES: Final = (*OUTPUT_GATES, "max_size_ratio", "min_coverage")
_FRACTIONS: Final = ("min_agreement", "min_coverage")
#: the narrowest types that --target-size mixes with wider ones
_MIXED: Final = ("int2", "uint2", "int4", "uint4", "int8", "uint8")
_EIGHT_BITS: Final = ("int8", "uint8")


def option_flag(name: str) -> str:
    """How the command line spells an option."""
    return "--no-verify" if name == "verify" else "--" + name.replace("_", "-")


def check_value(name: str, value: Any) -> None:
    """Refuse a value that its option alone rules out."""
    if value is None:
        return
    if name in ("weights", "activations") and value not in ELEMENTS:
        raise BadValueError(f"Unknown type '{value}'", nearest(value, ELEMENTS))
    if name == "granularity" and block_size_of(value) is None:
        raise BadValueError(f"Unknown granularity '{value}'", "Use tensor, channel or block:N, N from 1 up.")
    if name == "target_size" and parse_target_size(value) is None:
        raise BadValueError(
            f"Unknown target size '{value}'",
            "Give a size with its unit, such as 500M or 4.5G, or 4.5bpw, bits per weight.",
        )
    if name == "metric" and not is_metric(value):
        raise BadValueError(f"Unknown metric '{value}'", nearest(value, (*METRICS, "package.module:callable")))
    if name in _COUNTS and value < 1:
        raise BadValueError(f"{option_flag(name)} is {value}", "Give a number from 1 up.")
    if name == "seed" and value < 0:
        raise BadValueError(f"--seed is {value}", "Give a number from 0 up.")
    if name in _GATES:
        _check_gate(name, value)
    if isinstance(value, tuple) and "" in value:
        raise BadValueError(f"{option_flag(name)} holds an empty text", "Give a name or a glob.")


def _check_gate(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise BadValueError(f"{option_flag(name)} is {value}", "Give a finite number.")
    if name in _FRACTIONS and not 0 <= value <= 1:
        raise BadValueError(f"{option_flag(name)} is {value}", "Give a fraction from 0 to 1.")
    if name != "min_sqnr" and value < 0:
        raise BadValueError(f"{option_flag(name)} is {value}", "Give a number from 0 up.")


# --- pairs ----------------------------------------------------------------------------------------------


def impossible_pairs(values: Mapping[str, Any]) -> Iterator[OptionError]:
    """Everything in the fields of a recipe that no model could satisfy, whatever it is."""
    mode = values["mode"]
    if values["target_size"] is not None:
        yield from _with_target_size(values)
    if values["format"] is Format.QOPERATOR:
        yield from _with_qoperator(values)
    if mode is Mode.DYNAMIC:
        yield from _with_dynamic(values)
    if values["io"] is GraphIO.QUANTIZED and mode in (Mode.DYNAMIC, Mode.WEIGHT_ONLY):
        yield _impossible(values, "mode", "io", "only a static model has integer inputs and outputs")
    if not values["verify"]:
        for gate in OUTPUT_GATES:
            if values[gate] is not None:
                yield _impossible(values, gate, "verify", "the gate needs the comparison that it skips")
    yield from impossible_rules(values["rules"], mode=None if mode is Mode.AUTO else mode, form=values["format"])


def impossible_rules(rules: Sequence[Rule], *, mode: Mode | None, form: Format | None) -> Iterator[OptionError]:
    """Rules that ask for what a mode or a format does not have. mode: None is unknown, AUTO the mix without data."""
    for position, rule in enumerate(rules, start=1):
        pairs: list[tuple[str, str]] = []
        if form is Format.QOPERATOR:
            pairs += [
                (key, "--format qoperator, whose operators take 8-bit integers only")
                for key in ("weights", "activations")
                if getattr(rule, key) not in (None, *_EIGHT_BITS)
            ]
            pairs += [("granularity", "--format qoperator, whose operators take no blocks")] * _in_blocks(rule)
        if mode is Mode.DYNAMIC:
            if rule.weights not in (None, *_EIGHT_BITS):
                pairs.append(("weights", "dynamic mode: MatMulInteger takes int8 and uint8 weights only"))
            pairs += [("granularity", "dynamic mode: MatMulInteger takes no blocks")] * _in_blocks(rule)
        if mode in (Mode.DYNAMIC, Mode.AUTO) and rule.activations not in (None, FLOAT, "uint8"):
            pairs.append(("activations", "activations that are quantized at run time: they are uint8"))
        if mode is Mode.WEIGHT_ONLY and rule.activations not in (None, FLOAT):
            pairs.append(("activations", "weight-only mode, which leaves activations in float"))
        if rule.algorithms and (because := _homeless(rule.algorithms, mode)):
            pairs.append(("algorithms", because))
        yield from (_impossible_rule(position, rule, key, because) for key, because in pairs)


def _homeless(algorithms: Sequence[Algorithm], mode: Mode | None) -> str:
    """Why a mode does not have one of these algorithms; "" where it has all."""
    if mode is Mode.WEIGHT_ONLY and not set(algorithms) <= set(OF_WEIGHTS):
        return "weight-only mode: they are fitted to samples of a static model"
    if mode is Mode.STATIC and not set(algorithms) <= set(OF_STATIC):
        return "static mode: they are for weights alone"
    if mode in (Mode.DYNAMIC, Mode.AUTO):
        place = "a run without data" if mode is Mode.AUTO else f"{mode} mode"
        return f"{place}: they are fitted to samples of a static model, or for weight-only mode"
    return ""


def _in_blocks(rule: Rule) -> bool:
    return rule.granularity is not None and bool(block_size_of(rule.granularity))


def _impossible_rule(position: int, rule: Rule, key: str, because: str) -> OptionError:
    value = getattr(rule, key)
    shown = ", ".join(value) if isinstance(value, tuple) else value
    return OptionError(
        "impossible-pair",
        f"Rule {position} sets {key} {shown}, which does not go with {because}",
        where=f"rules: rule {position}",
        fix=f"Change the rule, or leave {key} out of it.",
    )


def _with_qoperator(values: Mapping[str, Any]) -> Iterator[OptionError]:
    if values["mode"] is Mode.WEIGHT_ONLY:
        yield _impossible(values, "mode", "format", "QOperator computes on quantized activations")
    for name in ("weights", "activations"):
        if values[name] not in (None, *_EIGHT_BITS):
            yield _impossible(values, name, "format", "its operators take 8-bit integers only")
    if values["granularity"] is not None and block_size_of(values["granularity"]):
        yield _impossible(values, "granularity", "format", "its operators take no blocks")


def _with_target_size(values: Mapping[str, Any]) -> Iterator[OptionError]:
    if values["mode"] not in (Mode.AUTO, Mode.WEIGHT_ONLY):
        yield _impossible(values, "mode", "target_size", "types are mixed where weights alone are quantized")
    if values["weights"] not in (None, *_MIXED):
        yield _impossible(values, "weights", "target_size", f"it mixes integers from one of {', '.join(_MIXED)} up")


def _with_dynamic(values: Mapping[str, Any]) -> Iterator[OptionError]:
    if values["weights"] not in (None, *_EIGHT_BITS):
        yield _impossible(values, "weights", "mode", "MatMulInteger takes int8 and uint8 weights only")
    if values["activations"] not in (None, "uint8"):
        yield _impossible(values, "activations", "mode", "DynamicQuantizeLinear writes uint8 only")
    if values["granularity"] is not None and block_size_of(values["granularity"]):
        yield _impossible(values, "granularity", "mode", "MatMulInteger takes no blocks")


def _impossible(values: Mapping[str, Any], first: str, second: str, because: str) -> OptionError:
    shown = [option_flag(n) if n == "verify" else f"{option_flag(n)} {values[n]}" for n in (first, second)]
    return OptionError(
        "impossible-pair",
        f"{shown[0]} does not go with {shown[1]}: {because}",
        where=f"{option_flag(first)}, {option_flag(second)}",
        fix=f"Change one of them, or leave {option_flag(first)} out.",
    )
