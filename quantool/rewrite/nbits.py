"""MatMulNBits and GatherBlockQuantized (com.microsoft): weights of 2, 4 and 8 bits, packed a row at a time.

Both read a matrix of rows [N, K] as codes q without sign, each w = (q - z) * s (SPEC section 4). MatMulNBits takes
uint8 [N, blocks, block * bits / 8], low bits first, K padded to whole blocks, scales [N, blocks], and zero
points packed like the codes, each row padded to a byte, where they are not 2^(bits - 1). GatherBlockQuantized takes the
same with the codes as [N, K * bits / 8], so that a tied table is stored once and reshaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import ml_dtypes
import numpy as np

from quantool.edits import AddNode
from quantool.elements import ELEMENTS
from quantool.kernels import pack_lowbit
from quantool.ops import inner_axis
from quantool.rewrite.builder import Builder
from quantool.rewrite.naming import stem
from quantool.schema import AnyArray, NodeFact, WeightParams

_CONTRIB: Final = "com.microsoft"
#: turns signed codes into unsigned ones, those of a whole byte at a time
_SIGNS: Final = {2: 0xAA, 4: 0x88, 8: 0x80}
#: rows that are packed at a time: a band of a large weight stays in a second-level cache
_BAND: Final = 256
_PACKED: Final = {2: ml_dtypes.uint2, 4: ml_dtypes.uint4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A weight seen as rows [count, length] with a scale for each `block` of a row.

    inner: the axis of the weight along a row; padded: elements of a row as stored.
    """

    weight: WeightParams
    inner: int
    block: int
    padded: int

    @property
    def bits(self) -> int:
        """Width of a stored code."""
        return ELEMENTS[self.weight.params.dtype].bits

    @property
    def count(self) -> int:
        """Number of rows, N."""
        return self.weight.shape[1 - self.inner]

    @property
    def length(self) -> int:
        """Elements of a row, K."""
        return self.weight.shape[self.inner]

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return -(-self.length // self.block)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of codes."""
        return self.padded * self.bits // 8

    @property
    def key(self) -> str:
        """Equal keys mean equal bytes."""
        return f"{self.weight.key}|rows|{self.inner}|{self.block}|{self.padded}"

    def codes(self) -> AnyArray:
        """The codes as uint8 [N, padded * bits / 8]; memory: the weight's codes and the result."""
        codes = self.weight.codes().view(np.uint8)
        packed = np.zeros((self.count, self.row_bytes), np.uint8)
        if self.inner == 0:
            _pack_columns(codes, packed, self.bits)
        else:
            _pack_rows(codes, packed, self.bits)
        if not self.weight.params.dtype.startswith("u"):
            packed ^= np.uint8(_SIGNS[self.bits])
        return packed

    def scales(self) -> AnyArray:
        """The scales in the type of the activations, [N, blocks]."""
        wanted = np.dtype(self.weight.spec.scale_type)
        return np.ascontiguousarray(self._spread(self.weight.params.scale).astype(wanted))

    def zero_points(self) -> AnyArray:
        """The zero points as codes, packed as uint8 [N, ceil(blocks * bits / 8)]."""
        per_byte = 8 // self.bits
        rows = np.zeros((self.count, -(-self.blocks // per_byte) * per_byte), np.uint8)
        rows[:, : self.blocks] = self._spread(self.weight.params.zero_point + self._offset)
        if self.bits == 8:
            return rows
        return pack_lowbit(rows.reshape(-1).view(_PACKED[self.bits])).reshape(self.count, -1)

    @property
    def has_zero_points(self) -> bool:
        """Whether some zero point is not the one that is taken by default, 2^(bits - 1)."""
        return bool(np.any(self.weight.params.zero_point + self._offset != 1 << (self.bits - 1)))

    @property
    def _offset(self) -> int:
        """What a code is stored higher than it is: signed codes start at 0."""
        return 0 if self.weight.params.dtype.startswith("u") else 1 << (self.bits - 1)

    def _spread(self, values: AnyArray) -> AnyArray:
        """Parameters of any granularity as one for each stored block, [N, blocks]."""
        params = self.weight.params
        if params.block_size:
            rows = values if self.inner == 1 else values.T
            spread: AnyArray = rows[:, np.arange(self.blocks) * self.block // params.block_size]
            return spread
        return np.broadcast_to(values[:, None] if values.ndim else values, (self.count, self.blocks))


def _pack_rows(codes: AnyArray, packed: AnyArray, bits: int) -> None:
    """Pack uint8 [N, K] codes, low bits first, into the first bytes of each row of uint8 [N, B]."""
    per_byte = 8 // bits
    used = -(-codes.shape[1] // per_byte)
    for start in range(0, len(codes), _BAND):
        rows = codes[start : start + _BAND]
        if bits < 8:
            rows = _whole_bytes(rows, 1, per_byte)
            rows = pack_lowbit(rows.reshape(-1).view(_PACKED[bits])).reshape(len(rows), used)
        packed[start : start + _BAND, :used] = rows


def _whole_bytes(codes: AnyArray, axis: int, per_byte: int) -> AnyArray:
    """The codes with zeros up to a multiple of `per_byte` along an axis."""
    missing = -codes.shape[axis] % per_byte
    return np.pad(codes, [(0, missing if at == axis else 0) for at in (0, 1)]) if missing else codes


def _pack_columns(codes: AnyArray, packed: AnyArray, bits: int) -> None:
    """The same for codes uint8 [K, N]: packed first, then turned, since moving bytes across rows is what costs."""
    per_byte, mask = 8 // bits, np.uint8((1 << bits) - 1)
    for start in range(0, len(codes), _BAND):
        rows = _whole_bytes(codes[start : start + _BAND], 0, per_byte)
        band = np.bitwise_and(rows[::per_byte], mask, dtype=np.uint8)
        for place in range(1, per_byte):
            band |= np.bitwise_and(rows[place::per_byte], mask, dtype=np.uint8) << np.uint8(bits * place)
        first = start // per_byte
        packed[:, first : first + len(band)] = band.T


def write_product(build: Builder, node: NodeFact) -> None:
    """MatMul or Gemm -> MatMulNBits; a row as bias goes in, another term is added behind."""
    decision = build.plan.decisions[node.name]
    rows = _product_rows(build, node)
    codes, scales, zero_points = _stored(build, rows, (rows.count, rows.blocks, rows.row_bytes // rows.blocks))
    term = node.inputs[2] if len(node.inputs) > 2 else ""
    bias = term if term and _is_row(build, term, rows.count) else ""
    output = node.outputs[0] if bias == term else build.named(node.outputs[0], "product")
    inputs = (node.inputs[0], codes, scales, zero_points, "", bias)
    attributes = {"K": rows.length, "N": rows.count, "bits": rows.bits, "block_size": rows.block}
    attributes["accuracy_level"] = decision.accuracy_level
    _replace(build, node, "MatMulNBits", (inputs, attributes, output))
    if bias != term:
        build.node("Add", (output, term), node.outputs[0], near=node.name)


def write_lookup(build: Builder, node: NodeFact) -> None:
    """Gather -> GatherBlockQuantized; a table that is also the weight of a product reads that one's codes."""
    tied = _tied_product(build, node)
    rows = _table_rows(build, node) if tied is None else _product_rows(build, tied)
    if tied is None:
        codes, scales, zero_points = _stored(build, rows, (rows.count, rows.row_bytes))
    else:
        stored, scales, zero_points = _stored(build, rows, (rows.count, rows.blocks, rows.row_bytes // rows.blocks))
        codes = _as_table(build, stored, rows, node)
    output = node.outputs[0]
    written = output if rows.padded == rows.length else build.named(output, "padded")
    attributes = {"gather_axis": 0, "quantize_axis": 1, "bits": rows.bits, "block_size": rows.block}
    _replace(build, node, "GatherBlockQuantized", ((codes, node.inputs[1], scales, zero_points), attributes, written))
    if written != output:
        bounds = {"row_start": 0, "row_end": rows.length, "row_axis": -1}
        keys = [(f"{name}|{value}", name, np.array([value])) for name, value in bounds.items()]
        build.node("Slice", (written, *(build.constants.array(*key) for key in keys)), output, near=node.name)


def _product_rows(build: Builder, node: NodeFact) -> Rows:
    block, weight = build.plan.decisions[node.name].stored_block, build.parameters.weights[node.name, 1]
    inner = inner_axis(node)
    return Rows(weight=weight, inner=inner, block=block, padded=-(-weight.shape[inner] // block) * block)


def _table_rows(build: Builder, node: NodeFact) -> Rows:
    """A table of its own needs whole bytes only."""
    weight, block = build.parameters.weights[node.name, 0], build.plan.decisions[node.name].stored_block
    per_byte = 8 // ELEMENTS[weight.params.dtype].bits
    return Rows(weight=weight, inner=1, block=block, padded=-(-weight.shape[1] // per_byte) * per_byte)


def _tied_product(build: Builder, node: NodeFact) -> NodeFact | None:
    """The product whose weight is the table or its transpose, with codes of the same type and blocks; or None."""
    own = build.parameters.weights[node.name, 0]
    block = build.plan.decisions[node.name].stored_block
    for other in build.tied_products.get(node.inputs[0], ()):
        decision = build.plan.decisions[other.name]
        weight = build.parameters.weights[other.name, 1]
        same = (weight.params.dtype, weight.params.block_size) == (own.params.dtype, own.params.block_size)
        granular = (weight.params.axis is None) == (own.params.axis is None)
        if decision.stored_block == block and same and granular:
            return other
    return None


def _as_table(build: Builder, stored: str, rows: Rows, node: NodeFact) -> str:
    """Packed rows of a product as a table [N, bytes]; the runtime reshapes a constant when it loads."""
    shape = (rows.count, rows.row_bytes)
    wanted = build.constants.array(f"table shape|{shape}", "table_shape", np.array(shape))
    return build.node("Reshape", (stored, wanted), build.named(stored, "table"), near=node.name)


def _is_row(build: Builder, term: str, columns: int) -> bool:
    fact = build.facts.tensors[term]
    return fact.is_constant and fact.shape == (columns,)


def _stored(build: Builder, rows: Rows, shape: tuple[int, ...]) -> tuple[str, str, str]:
    """Store codes in a shape, scales, and zero points where they are needed ("" elsewhere); returns their names."""
    constants, base = build.constants, stem(rows.weight.spec.tensor)
    key = f"{rows.key}|{shape}"
    codes = constants.lazy(key, f"{base}_quantized", ("uint8", shape), lambda: rows.codes().reshape(shape))
    form = (rows.weight.spec.scale_type, (rows.count, rows.blocks))
    scales = constants.lazy(f"{rows.key}|scales", f"{base}_scale", form, rows.scales)
    if not rows.has_zero_points:
        return codes, scales, ""
    packed = ("uint8", (rows.count, -(-rows.blocks * rows.bits // 8)))
    return codes, scales, constants.lazy(f"{rows.key}|zero", f"{base}_zero_point", packed, rows.zero_points)


def _replace(
    build: Builder, node: NodeFact, op_type: str, written: tuple[tuple[str, ...], dict[str, int], str]
) -> None:
    """Write an operator of com.microsoft in a node's place. written: inputs, attributes, output."""
    inputs, attributes, output = written
    while not inputs[-1]:
        inputs = inputs[:-1]
    build.require(_CONTRIB)
    build.remove(node)
    build.edits.append(
        AddNode(
            op_type=op_type,
            domain=_CONTRIB,
            name=node.name,
            inputs=inputs,
            outputs=(output,),
            attributes=dict(attributes),
            near=node.name,
        )
    )
