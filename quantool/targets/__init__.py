"""Targets: what a runtime really executes as integers, one TOML file a target (data, not code)."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from quantool.errors import OptionError

_FOLDER = Path(__file__).parent
DEFAULT = "cpu-x64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One integer kernel. output: whether its result must be quantized too ("required") or may stay float.

    formats: how a graph may ask for it; qoperator: the operator written in QOperator format ("" for a data
    mover, which runs on integers as it is). per_row: it takes a scale for each row of its first operand.
    """

    op: str
    domain: str
    name: str
    activations: tuple[str, ...]
    weights: tuple[str, ...]
    output: str
    formats: tuple[str, ...]
    qoperator: str
    source: str
    per_row: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightForm:
    """How operators are written whose weights alone are integers, instead of reading them from DequantizeLinear.

    ops: the operators; form: the com.microsoft operator in their place; bits: widths of codes that it takes; floats:
    types of activations and scales; smallest_block, largest_block: how many weights may share a scale, a power of two;
    accuracy_level: what MatMulNBits rounds its activations to (4: 8 bits).
    """

    ops: tuple[str, ...]
    form: str
    bits: tuple[int, ...]
    floats: tuple[str, ...]
    smallest_block: int
    largest_block: int
    accuracy_level: int
    source: str
    verified_with: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A runtime: its kernels, and the types that the defaults choose.

    weight_bits: codes narrower than the type where u8 x s8 products can saturate. runs_here: ONNX Runtime on
    this machine executes what the table says, so that the optimized graph can be held against it. weight_only: the
    types that a MatMul multiplies with as they are where only weights are quantized. weight_only_floats: the float
    types that such a model may keep (others become float32). weight_forms: the first that fits an operator is written,
    DequantizeLinear where none does. reference_weights,
    reference_activations: types that the runtime does not load, so that the onnx reference evaluator verifies.
    feature_level: DirectML's, which limits QuantizeLinear; None elsewhere.
    """

    name: str
    description: str
    source: str
    verified_with: str
    activations: str
    weights: str
    weight_bits: int
    runs_here: bool
    weight_only: tuple[str, ...]
    weight_only_floats: tuple[str, ...]
    weight_forms: tuple[WeightForm, ...]
    reference_weights: tuple[str, ...]
    reference_activations: tuple[str, ...]
    feature_level: str | None
    kernels: Mapping[tuple[str, str], Kernel]

    def weight_form(self, op_type: str, *, bits: int, float_type: str) -> WeightForm | None:
        """The form of an operator with weights of that width and activations of that type; None: DequantizeLinear."""
        forms = (form for form in self.weight_forms if op_type in form.ops and bits in form.bits)
        return next((form for form in forms if float_type in form.floats), None)

    def kernel(self, domain: str, op_type: str) -> Kernel | None:
        """The integer kernel of an operator, or None."""
        return self.kernels.get(("" if domain == "ai.onnx" else domain, op_type))


def _kernel(row: Mapping[str, Any], source: str) -> Kernel:
    return Kernel(
        op=row["op"],
        domain=row.get("domain", ""),
        name=row.get("name", row["op"]),
        activations=tuple(row["activations"]),
        weights=tuple(row.get("weights", ())),
        output=row.get("output", "required"),
        formats=tuple(row.get("formats", ("qdq", "qoperator"))),
        qoperator=row.get("qoperator", ""),
        source=row.get("source", source),
        per_row=row.get("per_row", False),
    )


def _weight_form(row: Mapping[str, Any]) -> WeightForm:
    return WeightForm(
        ops=tuple(row["ops"]),
        form=row["form"],
        bits=tuple(row["bits"]),
        floats=tuple(row["floats"]),
        smallest_block=row["smallest_block"],
        largest_block=row["largest_block"],
        accuracy_level=row.get("accuracy_level", 0),
        source=row["source"],
        verified_with=row["verified_with"],
    )


def _has(row: Mapping[str, Any], level: str | None) -> bool:
    """Whether a kernel exists at a feature level."""
    return level is None or tuple(map(int, row["since"].split("."))) <= tuple(map(int, level.split(".")))


@cache
def load(name: str) -> Target:
    """Read one target by name. Raises OptionError with the nearest known names."""
    path = _FOLDER / f"{name}.toml"
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1) or list(names())
        raise OptionError(
            "unknown-target",
            f"there is no target {name!r}",
            where="--target",
            fix=f"Choose one of: {', '.join(near)}. `quantool targets` lists all.",
        )
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    if base := data.get("extends"):
        parent = tomllib.loads((_FOLDER / f"{base}.toml").read_text(encoding="utf-8"))
        data = {**parent, **data}
    level = data.get("feature_level")
    rows = [_kernel(row, data["source"]) for row in data["kernels"] if _has(row, level)]
    return Target(
        name=name,
        description=data["description"],
        source=data["source"],
        verified_with=data["verified_with"],
        activations=data["activations"],
        weights=data["weights"],
        weight_bits=data.get("weight_bits", 8),
        runs_here=data.get("runs_here", False),
        weight_only=tuple(data["weight_only"]),
        weight_only_floats=tuple(data["weight_only_floats"]),
        weight_forms=tuple(map(_weight_form, data.get("weight_forms", ()))),
        reference_weights=tuple(data["reference_weights"]),
        reference_activations=tuple(data["reference_activations"]),
        feature_level=level,
        kernels=MappingProxyType({(k.domain, k.op): k for k in rows}),
    )


@cache
def names() -> tuple[str, ...]:
    """The names of all targets, sorted."""
    return tuple(sorted(p.stem for p in _FOLDER.glob("*.toml")))


def load_all() -> tuple[Target, ...]:
    """All targets, sorted by name."""
    return tuple(load(name) for name in names())
