"""Recipe: everything that decides how a model is quantized, checked before any work begins.

A recipe file is TOML whose top-level keys are the option names with underscores, plus ordered ``[[rules]]``; an
empty one is valid. Options given beside it win over it. Unknown keys and values are refused with the nearest
known one.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, get_origin, get_type_hints

from quantool.elements import ELEMENTS
from quantool.errors import OptionError, QuantoolError, RecipeError
from quantool.schema import Format, Mode
from quantool.values import BadValueError, block_size_of, nearest, parse_memory, strict

OUTPUT_GATES: Final[tuple[str, ...]] = ("min_sqnr", "min_agreement", "min_speedup", "max_drop")
"""The gates that need the result to run; size and coverage are known without."""

_COUNTS: Final = ("samples", "batch_size", "threads", "memory")
_GATES: Final = (*OUTPUT_GATES, "max_size_ratio", "min_coverage")
_FRACTIONS: Final = ("min_agreement", "min_coverage")


class Calibrator(StrEnum):
    """How a range is read off a tensor's statistic."""

    MSE = "mse"
    MINMAX = "minmax"
    PERCENTILE = "percentile"
    ENTROPY = "entropy"
    MOVING_AVERAGE = "moving-average"


class Formula(StrEnum):
    """How a range becomes a scale and a zero point."""

    ONNX = "onnx"
    ONNX_SYMMETRIC = "onnx-symmetric"
    TF_MIN_FIRST = "tf-min-first"
    TF_SCALED = "tf-scaled"
    TF_MIN_COMBINED = "tf-min-combined"


class Effort(StrEnum):
    """How much is tried to keep accuracy."""

    FAST = "fast"
    BALANCED = "balanced"
    MAX = "max"


class Collect(StrEnum):
    """What calibration collects beyond the statistics of tensors."""

    FULL = "full"
    GRAM = "gram"


class GraphIO(StrEnum):
    """What graph inputs and outputs hold."""

    FLOAT = "float"
    QUANTIZED = "quantized"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One ordered rule: what it matches, and what it sets there; a later rule wins over an earlier one.

    name, tensor: globs; op_type: an operator type. Every key given must match. name and op_type match nodes; a
    range or calibrator set through them concerns the tensors that those nodes write.
    """

    name: str | None = None
    op_type: str | None = None
    tensor: str | None = None
    exclude: bool | None = None
    range: tuple[float, float] | None = None
    calibrator: Calibrator | None = None

    def __post_init__(self) -> None:
        problem = None
        if self.name is None and self.op_type is None and self.tensor is None:
            problem = "A rule matches nothing", "Give it name, op_type or tensor."
        elif self.exclude is None and self.range is None and self.calibrator is None:
            problem = "A rule sets nothing", "Give it exclude, range or calibrator."
        elif self.exclude is not None and self.tensor is not None:
            problem = f"A rule excludes the tensor '{self.tensor}'", "Match its node by name or op_type."
        elif self.range is not None and not (_finite(*self.range) and self.range[0] < self.range[1]):
            problem = f"A rule sets the range {list(self.range)}", "Give [lo, hi], finite and lo below hi."
        if problem is not None:
            raise OptionError("bad-rule", problem[0], where="rules", fix=problem[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The decisions of one run. None leaves a decision to the target and the mode.

    Names, meaning and units are those of the command line's options. include and include_op restrict the run to
    what matches and ask for it explicitly (policy keeps none of it in float); exclude and exclude_op win.
    collect: full counts every element of large tensors, gram adds the Gram matrices of layers. memory: bytes.
    max_drop: in the metric's own unit. verify is False under --no-verify.
    """

    mode: Mode = Mode.AUTO
    format: Format | None = None
    target: str = "cpu-x64"
    weights: str | None = None
    activations: str | None = None
    granularity: str | None = None
    calibrator: Calibrator | None = None
    formula: Formula | None = None
    narrow_range: bool = False
    effort: Effort = Effort.BALANCED
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    include_op: tuple[str, ...] = ()
    exclude_op: tuple[str, ...] = ()
    io: GraphIO = GraphIO.FLOAT
    ranges: Path | None = None
    collect: tuple[Collect, ...] = ()
    samples: int | None = None
    batch_size: int | None = None
    memory: int | None = None
    threads: int | None = None
    seed: int = 0
    preprocess: str | None = None
    verify: bool = True
    keep: bool = False
    allow_nonfinite: bool = False
    min_sqnr: float | None = None
    min_agreement: float | None = None
    min_speedup: float | None = None
    max_size_ratio: float | None = None
    min_coverage: float | None = None
    max_drop: float | None = None
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        for spec in fields(self):
            try:
                _check_value(spec.name, getattr(self, spec.name))
            except BadValueError as bad:
                raise OptionError("bad-value", bad.what, where=option_flag(spec.name), fix=bad.fix) from None
        _check_pairs(self)

    @property
    def block_size(self) -> int:
        """N of the granularity ``block:N``, 0 for every other."""
        return 0 if self.granularity is None else block_size_of(self.granularity) or 0

    def to_dict(self) -> dict[str, object]:
        """Every field under its name, as plain values that `from_options` takes back."""
        return {spec.name: _plain(getattr(self, spec.name)) for spec in fields(self)}


def from_options(options: Mapping[str, object], recipe: Path | Mapping[str, object] | Recipe | None = None) -> Recipe:
    """A Recipe out of a recipe (TOML file, mapping or Recipe) and the options beside it, which win.

    options: option names with underscores; None means not given. A list replaces the recipe's list.
    ``ranges`` in a recipe file is relative to that file.

    Raises:
        RecipeError: the recipe cannot be read, has an unknown key or value, or contradicts itself.
        OptionError: an option is unknown, has an unknown value, or makes an impossible pair.
    """
    origin = f"recipe {recipe}" if isinstance(recipe, Path) else "recipe"
    base = _converted(_read(recipe), error=RecipeError, origin=origin)
    if isinstance(recipe, Path) and "ranges" in base:
        base["ranges"] = recipe.parent / base["ranges"]
    values = base | _converted(options, error=OptionError, origin="")
    try:
        return Recipe(**values)
    except OptionError as error:
        if not _contradicts_itself(base):
            raise
        raise RecipeError(error.code, error.what, where=f"{origin}: {error.where}", fix=error.fix) from None


def option_flag(name: str) -> str:
    """How the command line spells an option."""
    return "--no-verify" if name == "verify" else "--" + name.replace("_", "-")


# --- checks ---------------------------------------------------------------------------------------------


def _finite(*values: float) -> bool:
    return all(math.isfinite(value) for value in values)


def _check_value(name: str, value: Any) -> None:
    """Refuse a value that its option alone rules out."""
    if value is None:
        return
    if name in ("weights", "activations") and value not in ELEMENTS:
        raise BadValueError(f"Unknown type '{value}'", nearest(value, ELEMENTS))
    if name == "granularity" and block_size_of(value) is None:
        raise BadValueError(f"Unknown granularity '{value}'", "Use tensor, channel or block:N, N from 1 up.")
    if name in _COUNTS and value < 1:
        raise BadValueError(f"{option_flag(name)} is {value}", "Give a number from 1 up.")
    if name == "seed" and value < 0:
        raise BadValueError(f"--seed is {value}", "Give a number from 0 up.")
    if name in _GATES:
        _check_gate(name, value)
    if isinstance(value, tuple) and "" in value:
        raise BadValueError(f"{option_flag(name)} holds an empty text", "Give a name or a glob.")


def _check_gate(name: str, value: float) -> None:
    if not _finite(value):
        raise BadValueError(f"{option_flag(name)} is {value}", "Give a finite number.")
    if name in _FRACTIONS and not 0 <= value <= 1:
        raise BadValueError(f"{option_flag(name)} is {value}", "Give a fraction from 0 to 1.")
    if name != "min_sqnr" and value < 0:
        raise BadValueError(f"{option_flag(name)} is {value}", "Give a number from 0 up.")


def _check_pairs(recipe: Recipe) -> None:
    """Refuse what no model could satisfy, whatever it is."""
    if recipe.format is Format.QOPERATOR:
        _check_qoperator(recipe)
    if recipe.mode is Mode.DYNAMIC:
        _check_dynamic(recipe)
    if recipe.io is GraphIO.QUANTIZED and recipe.mode in (Mode.DYNAMIC, Mode.WEIGHT_ONLY):
        raise _impossible(recipe, "mode", "io", "only a static model has integer inputs and outputs")
    if not recipe.verify:
        for gate in OUTPUT_GATES:
            if getattr(recipe, gate) is not None:
                raise _impossible(recipe, gate, "verify", "the gate needs the comparison that it skips")


def _check_qoperator(recipe: Recipe) -> None:
    if recipe.mode is Mode.WEIGHT_ONLY:
        raise _impossible(recipe, "mode", "format", "QOperator computes on quantized activations")
    for name in ("weights", "activations"):
        if getattr(recipe, name) not in (None, "int8", "uint8"):
            raise _impossible(recipe, name, "format", "its operators take 8-bit integers only")
    if recipe.block_size:
        raise _impossible(recipe, "granularity", "format", "its operators take no blocks")


def _check_dynamic(recipe: Recipe) -> None:
    if recipe.weights not in (None, "int8", "uint8"):
        raise _impossible(recipe, "weights", "mode", "MatMulInteger takes int8 and uint8 weights only")
    if recipe.activations not in (None, "uint8"):
        raise _impossible(recipe, "activations", "mode", "DynamicQuantizeLinear writes uint8 only")
    if recipe.block_size:
        raise _impossible(recipe, "granularity", "mode", "MatMulInteger takes no blocks")


def _impossible(recipe: Recipe, first: str, second: str, because: str) -> OptionError:
    shown = [option_flag(n) if n == "verify" else f"{option_flag(n)} {getattr(recipe, n)}" for n in (first, second)]
    return OptionError(
        "impossible-pair",
        f"{shown[0]} does not go with {shown[1]}: {because}",
        where=f"{option_flag(first)}, {option_flag(second)}",
        fix=f"Change one of them, or leave {option_flag(first)} out.",
    )


def _contradicts_itself(values: Mapping[str, Any]) -> bool:
    try:
        Recipe(**values)
    except OptionError:
        return True
    return False


# --- reading and converting -----------------------------------------------------------------------------


def _read(recipe: Path | Mapping[str, object] | Recipe | None) -> Mapping[str, object]:
    if isinstance(recipe, Recipe):
        return {spec.name: getattr(recipe, spec.name) for spec in fields(recipe)}
    if not isinstance(recipe, Path):
        return recipe or {}
    try:
        return tomllib.loads(recipe.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        what = f"The recipe cannot be read: {error.strerror}"
        fix = "Give the path of a TOML file that you may read."
        raise RecipeError("recipe-unreadable", what, where=str(recipe), fix=fix) from error
    except ValueError as error:
        what = f"The recipe is not TOML: {error}"
        raise RecipeError("recipe-not-toml", what, where=str(recipe), fix="Correct its syntax.") from error


def _converted(given: Mapping[str, object], *, error: type[QuantoolError], origin: str) -> dict[str, Any]:
    """Given values as field values; an empty `origin` means that they are options."""
    kinds = get_type_hints(Recipe)
    values: dict[str, Any] = {}
    for key, value in ((str(key), value) for key, value in given.items()):
        where = f"{origin}: {key}" if origin else option_flag(key)
        name = "verify" if key == "no_verify" else key
        if name not in kinds:
            code, what = ("unknown-key", "key") if origin else ("unknown-option", "option")
            raise error(code, f"Unknown {what} '{key}'", where=where, fix=nearest(key, kinds))
        if value is None:
            continue
        try:
            values[name] = _convert(name, value, kinds[name])
            _check_value(name, values[name])
        except BadValueError as bad:
            raise error("bad-value", bad.what, where=where, fix=bad.fix) from None
        if key == "no_verify":
            values[name] = not values[name]
    return values


def _convert(name: str, value: object, kind: Any) -> object:
    """A value as its field holds it, without guessing: "3" is no number and 1 is no flag."""
    if name == "ranges":
        return Path(str(value)) if isinstance(value, Path) else Path(strict(name, value, str))
    if name == "rules":
        return _rules(value)
    if name == "memory" and isinstance(value, str):
        size = parse_memory(value)
        if size is None:
            raise BadValueError(f"Unknown memory size '{value}'", "Give a size such as 512M or 2G.")
        return size
    if get_origin(kind) is tuple and isinstance(value, str):
        value = (value,)
    return strict(name, value, kind)


def _rules(value: object) -> tuple[Rule, ...]:
    if not isinstance(value, list | tuple):
        raise BadValueError(f"rules is {value!r}", "Write each rule as a [[rules]] table.")
    return tuple(_rule(item, position) for position, item in enumerate(value, start=1))


def _rule(item: object, position: int) -> Rule:
    if isinstance(item, Rule):
        return item
    if not isinstance(item, Mapping):
        raise BadValueError(f"Rule {position} is {item!r}", "Write each rule as a [[rules]] table.")
    kinds = get_type_hints(Rule)
    for key in item:
        if key not in kinds:
            raise BadValueError(f"Rule {position} has the unknown key '{key}'", nearest(str(key), kinds))
    try:
        return Rule(**{key: strict(key, part, kinds[key]) for key, part in item.items()})
    except OptionError as error:
        raise BadValueError(f"Rule {position}: {error.what}", error.fix) from None


def _plain(value: object) -> object:
    if isinstance(value, Rule):
        shown = {spec.name: _plain(getattr(value, spec.name)) for spec in fields(value)}
        return {key: part for key, part in shown.items() if part is not None}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, StrEnum | Path) else value
