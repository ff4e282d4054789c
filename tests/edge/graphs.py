"""Models in ONNX text, and the feeds and constants that they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx.parser
from numpy.typing import NDArray

from quantool.schema import AnyArray

Constants = Mapping[str, AnyArray]


def model(
    text: str,
    constants: Constants | None = None,
    *,
    opset: int = 17,
    ir: int = 8,
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model from its signature and body in ONNX text; `constants` become initializers that it may read.

    An output without dimensions in the text has none declared. domains: imported beside ai.onnx.
    """
    imports = ", ".join(f'"{name}" : {version}' for name, version in {"": opset, **(domains or {})}.items())
    proto = onnx.parser.parse_model(f"<ir_version: {ir}, opset_import: [{imports}]> g {text}")
    for output in proto.graph.output:
        if output.type.HasField("tensor_type") and not output.type.tensor_type.shape.dim:
            output.type.tensor_type.ClearField("shape")
    for name, array in (constants or {}).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return proto


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> NDArray[np.float32]:
    """Normal float32 values."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def weight(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Normal values that keep the variance of what they multiply: scaled by the root of the inputs summed over.

    A matrix [K, N] sums over K, convolution weights [M, C, ...] over everything behind M.
    """
    summed = shape[-2] if len(shape) < 4 else int(np.prod(shape[1:]))
    return normal(*shape, seed=seed, scale=float(summed) ** -0.5)


def feeds(count: int = 32, seed: int = 7, **shapes: Sequence[int]) -> list[dict[str, AnyArray]]:
    """Feeds of normal float32 numbers for the inputs named, bounded so that a few of them show the range."""
    rng = np.random.default_rng(seed)
    return [
        {name: rng.standard_normal(shape).clip(-2.5, 2.5).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(count)
    ]


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes of a graph and of the graphs inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
                yield from nodes(inner)
