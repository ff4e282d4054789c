"""The frozen data that flows between the stages: facts -> plan -> parameters -> edits -> verdict.

Names of nodes and tensors are unique over all scopes of a model once ``graph.normalize`` has run, so a plain
string addresses either. Types of elements are ml_dtypes / NumPy names such as ``uint8`` or ``int4``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from quantool.elements import ELEMENTS

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
AnyArray = NDArray[np.generic]
Feed = Mapping[str, AnyArray]
AttributeValue = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


class Mode(StrEnum):
    """How a model is quantized."""

    AUTO = "auto"
    STATIC = "static"
    DYNAMIC = "dynamic"
    WEIGHT_ONLY = "weight-only"


class Format(StrEnum):
    """How a static result is written."""

    QDQ = "qdq"
    QOPERATOR = "qoperator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The codes qmin..qmax, and whether the zero point is forced to the middle; floating types count as symmetric."""

    qmin: int
    qmax: int
    symmetric: bool = False

    def __post_init__(self) -> None:
        if not self.qmin < self.qmax:
            raise ValueError(f"qmin={self.qmin} must be below qmax={self.qmax}")

    @classmethod
    def of(cls, dtype: str, *, symmetric: bool = False, bits: int | None = None) -> Grid:
        """The grid of an element type; `bits` narrows an integer one, as for 7-bit weights stored in int8."""
        element = ELEMENTS[dtype]
        if element.largest is not None:
            return cls(qmin=-element.largest, qmax=element.largest, symmetric=True)
        width = element.bits if bits is None else bits
        if dtype.startswith("u"):
            return cls(qmin=0, qmax=2**width - 1, symmetric=symmetric)
        return cls(qmin=-(2 ** (width - 1)), qmax=2 ** (width - 1) - 1, symmetric=symmetric)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The real interval that a grid will cover, and what choosing it cost.

    lo, hi: the chosen bounds; observed_min, observed_max: exact extrema of the data; clipped_share: fraction
    of observed elements outside lo..hi (estimated from the histogram); outliers: number of isolated elements
    that the robust cut left out (0 where none).
    """

    lo: float
    hi: float
    observed_min: float
    observed_max: float
    clipped_share: float = 0.0
    outliers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a node was not quantized: a stable code, the text, and what would change it."""

    code: str
    text: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A warning as data: what happened, where, and how to fix it."""

    code: str
    what: str
    where: str
    fix: str


# --- facts about a graph --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Use:
    """One reading of a tensor: the reader's node name and the index of the input."""

    node: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFact:
    """A tensor of the normalized graph. dtype "" and shape None mean unknown; "" readers never occur.

    transpose_of: the constant that this matrix is the transpose of, as a tied head of its embedding; "" elsewhere.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    producer: str | None
    readers: tuple[Use, ...]
    is_input: bool = False
    is_output: bool = False
    is_constant: bool = False
    transpose_of: str = ""

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.dtype.startswith(("float", "bfloat"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFact:
    """A node of the normalized graph. `scope` is "" at the top, else like ``if_1/then_branch``.

    Attributes hold plain values only (graphs and tensors are left out). `inputs` keeps "" for absent ones.
    `origins`: names of the nodes of the model as given that this node stands for.
    """

    name: str
    op_type: str
    domain: str
    scope: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue]
    origins: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenNode:
    """One node of the model as given, before normalization; `name` is unique (see DESIGN section 5)."""

    name: str
    op_type: str
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """What planning may know of a model: structure, types and shapes, and the values of small constants.

    nodes: all scopes, topological within each scope, outer before inner. values: constants of at most 4096
    elements. given: the rows of the report. absorbed: given node -> node it was folded into, or ""
    where it became a constant.
    """

    nodes: tuple[NodeFact, ...]
    tensors: Mapping[str, TensorFact]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, AnyArray]
    opset: int
    given: tuple[GivenNode, ...]
    absorbed: Mapping[str, str]
    by_name: Mapping[str, NodeFact] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", MappingProxyType({n.name: n for n in self.nodes}))

    def producer(self, tensor: str) -> NodeFact | None:
        """The node that writes a tensor, or None for inputs and constants."""
        fact = self.tensors.get(tensor)
        return None if fact is None or fact.producer is None else self.by_name[fact.producer]

    def is_constant(self, tensor: str) -> bool:
        """Whether a tensor is an initializer."""
        fact = self.tensors.get(tensor)
        return fact is not None and fact.is_constant

    def readers(self, tensor: str) -> tuple[Use, ...]:
        """Every reading of a tensor, in all scopes."""
        return self.tensors[tensor].readers


# --- the plan -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationSpec:
    """A tensor that gets a QuantizeLinear, and how its parameters come about.

    group: all tensors of one group share scale and zero point; statistic: the tensor whose statistic counts
    for it; fixed: a range known beforehand (Sigmoid: 0..1); bounds: what an absorbed Relu or Clip allows;
    exact: use the extrema, clip nothing; replaces: the producer writes integers, so that every reader, float
    ones included, reads the dequantized tensor; copied: a copy is quantized, because the producer stays fused
    only where QuantizeLinear is its only reader or none.
    """

    name: str
    dtype: str
    group: str
    statistic: str
    fixed: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None
    exact: bool = False
    replaces: bool = False
    copied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSpec:
    """A constant that becomes integers for one reader.

    index: which input of `node`; axis: the channel axis, None per tensor; block_size: 0 unless blocks run
    along `axis`; bits: codes may be narrower than dtype; bias: the bias tensor that becomes int32 with the
    scale activation x weight (own_bias_scale: one that follows the bias alone), or None; activation: the quantized
    input whose scale the bias uses, or None. scale_type: the float type that the scales are stored in.
    """

    node: str
    index: int
    tensor: str
    dtype: str
    axis: int | None
    block_size: int = 0
    bits: int = 8
    symmetric: bool = True
    bias: str | None = None
    own_bias_scale: bool = False
    activation: str | None = None
    scale_type: str = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What happens to one node: integers by `kernel`, or kept in float for a reason.

    into: the unit's anchor where the node is absorbed (a Relu into its Conv). inputs: the indices whose
    tensors are read quantized. expected: how the target runs it. stored_block: how many weights share a scale as
    MatMulNBits and GatherBlockQuantized store them (scales of longer runs are repeated), 0 elsewhere; accuracy_level:
    that of MatMulNBits (4: activations rounded to 8 bits).
    """

    node: str
    quantized: bool
    kernel: str = ""
    into: str = ""
    inputs: tuple[int, ...] = ()
    reason: Reason | None = None
    expected: str = "float"  # "integer" or "float"
    stored_block: int = 0
    accuracy_level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All decisions about one model: a pure function of facts, recipe, target and findings.

    barriers: readings by kept nodes that go through a copy, because the runtime would fuse across them: it
    would quantize the kept node, or take an integer product into a float one.
    opset: the least ai.onnx opset that the chosen form needs. reference: the runtime cannot run the types, so that
    the onnx reference evaluator verifies.
    """

    mode: Mode
    format: Format
    target: str
    opset: int
    decisions: Mapping[str, Decision]
    activations: Mapping[str, ActivationSpec]
    weights: tuple[WeightSpec, ...]
    barriers: tuple[Use, ...] = ()
    reference: bool = False
    notes: tuple[Note, ...] = ()


# --- parameters -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantParams:
    """Scale and zero point of one tensor on one grid. scale: float32[*S]; zero_point: int32[*S].

    S is () per tensor, (C,) per axis, the block shape per block. chosen: the range behind it (weights: None).
    residual_shift: what TF MIN_COMBINED loses because its offset is no integer (0 elsewhere).
    """

    dtype: str
    scale: FloatArray
    zero_point: IntArray
    axis: int | None = None
    block_size: int = 0
    chosen: Range | None = None
    residual_shift: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightParams:
    """A weight's parameters and its codes, made on demand so that only one weight is in memory.

    key: equal keys mean equal codes (shared weights are stored once). codes(): the integers, of that shape.
    bias: int32 codes or None; its scale is activation scale x weight scale.
    """

    spec: WeightSpec
    params: QuantParams
    key: str
    shape: tuple[int, ...]
    codes: Callable[[], AnyArray]
    rounded_to_nearest: bool = True
    bias: IntArray | None = None
    bias_scale: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Everything that solving found: by tensor for activations, by (node, input index) for weights.

    corrections: node -> mean error of each output channel, float64[O], that its bias takes out.
    """

    activations: Mapping[str, QuantParams]
    weights: Mapping[tuple[str, int], WeightParams]
    corrections: Mapping[str, NDArray[np.float64]] = field(default_factory=lambda: MappingProxyType({}))
    notes: tuple[Note, ...] = ()


# --- what verification says -----------------------------------------------------------------------------
