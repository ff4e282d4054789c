"""The four digit classifiers: each module says how it computes and how its ONNX graph is written."""

from __future__ import annotations

import torch
from onnx_export import (
    GraphWriter,
    write_batch_norm,
    write_conv,
    write_gelu,
    write_gemm,
    write_layer_norm,
    write_linear,
)
from torch import nn
from torch.nn import functional

CLASSES = 10


class Mlp(nn.Module):
    """Three Gemms with Relu between them, on the 64 pixels as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 256)
        self.fc2 = nn.Linear(256, 256)
        self.fc3 = nn.Linear(256, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores [N,10] of pixels [N,64]."""
        return self.fc3(functional.relu(self.fc2(functional.relu(self.fc1(x)))))

    def write(self, graph: GraphWriter, x: str) -> None:
        """Write Gemm, Relu, Gemm, Relu, Gemm."""
        x = graph.node("Relu", "", write_gemm(graph, "fc1", self.fc1, x))
        x = graph.node("Relu", "", write_gemm(graph, "fc2", self.fc2, x))
        write_gemm(graph, "fc3", self.fc3, x)


class ConvNorm(nn.Module):
    """Conv and BatchNormalization."""

    def __init__(self, channels: tuple[int, int], kernel: int = 3, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(*channels, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(channels[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return bn(conv(x))."""
        return self.bn(self.conv(x))

    def write(self, graph: GraphWriter, scope: str, x: str) -> str:
        """Write both operators, unfolded."""
        x = write_conv(graph, f"{scope}.conv", self.conv, x)
        return write_batch_norm(graph, f"{scope}.bn", self.bn, x)


class Residual(nn.Module):
    """Two 3x3 convolutions beside an identity or, where the channels change, a 1x1 convolution."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = ConvNorm((inside, outside))
        self.second = ConvNorm((outside, outside))
        self.shortcut = ConvNorm((inside, outside), 1) if inside != outside else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return relu(second(relu(first(x))) + shortcut(x))."""
        side = x if self.shortcut is None else self.shortcut(x)
        return functional.relu(self.second(functional.relu(self.first(x))) + side)

    def write(self, graph: GraphWriter, scope: str, x: str) -> str:
        """Write the branch, the shortcut if there is one, Add and Relu."""
        branch = graph.node("Relu", scope, self.first.write(graph, f"{scope}.first", x))
        branch = self.second.write(graph, f"{scope}.second", branch)
        side = x if self.shortcut is None else self.shortcut.write(graph, f"{scope}.shortcut", x)
        return graph.node("Relu", scope, graph.node("Add", scope, branch, side))


class Cnn(nn.Module):
    """A small ResNet: a stem, three residual blocks, one MaxPool, a GlobalAveragePool."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm((1, 32))
        self.blocks = nn.ModuleList([Residual(32, 32), Residual(32, 48), Residual(48, 48)])
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores [N,10] of images [N,1,16,16]."""
        x = self.blocks[0](functional.relu(self.stem(x)))
        x = self.blocks[2](self.blocks[1](functional.max_pool2d(x, 2)))
        return self.head(x.mean((2, 3)))

    def write(self, graph: GraphWriter, x: str) -> None:
        """Write the blocks, GlobalAveragePool, Flatten and Gemm."""
        x = graph.node("Relu", "", self.stem.write(graph, "stem", x))
        x = self.blocks[0].write(graph, "blocks.0", x)
        x = graph.node("MaxPool", "", x, kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0], ceil_mode=0)
        for index in (1, 2):
            x = self.blocks[index].write(graph, f"blocks.{index}", x)
        x = graph.node("Flatten", "", graph.node("GlobalAveragePool", "", x), axis=1)
        write_gemm(graph, "head", self.head, x)


def write_relu6(graph: GraphWriter, scope: str, x: str) -> str:
    """Write ReLU6 as Clip with its bounds in Constant nodes."""
    return graph.node("Clip", scope, x, graph.constant(scope, 0.0), graph.constant(scope, 6.0))


class Separable(nn.Module):
    """MobileNet's unit: a depthwise 3x3 convolution, then a pointwise one, ReLU6 after each."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.depthwise = ConvNorm((inside, inside), stride=stride, groups=inside)
        self.pointwise = ConvNorm((inside, outside), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return relu6(pointwise(relu6(depthwise(x))))."""
        return functional.relu6(self.pointwise(functional.relu6(self.depthwise(x))))

    def write(self, graph: GraphWriter, scope: str, x: str) -> str:
        """Write both convolutions with their Clip."""
        x = write_relu6(graph, scope, self.depthwise.write(graph, f"{scope}.depthwise", x))
        return write_relu6(graph, scope, self.pointwise.write(graph, f"{scope}.pointwise", x))


class InvertedResidual(nn.Module):
    """MobileNetV2's unit: widen, filter depthwise, narrow without activation, add."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.expand = ConvNorm((channels, wide), 1)
        self.depthwise = ConvNorm((wide, wide), groups=wide)
        self.project = ConvNorm((wide, channels), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x + project(relu6(depthwise(relu6(expand(x)))))."""
        wide = functional.relu6(self.depthwise(functional.relu6(self.expand(x))))
        return x + self.project(wide)

    def write(self, graph: GraphWriter, scope: str, x: str) -> str:
        """Write the three convolutions and the Add."""
        wide = write_relu6(graph, scope, self.expand.write(graph, f"{scope}.expand", x))
        wide = write_relu6(graph, scope, self.depthwise.write(graph, f"{scope}.depthwise", wide))
        return graph.node("Add", scope, x, self.project.write(graph, f"{scope}.project", wide))


class Depthwise(nn.Module):
    """A small MobileNet: a stem, two separable units, two inverted residuals, a pointwise last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm((1, 32))
        self.blocks = nn.ModuleList(
            [
                Separable(32, 64, 1),
                Separable(64, 96, 2),
                InvertedResidual(96, 192),
                InvertedResidual(96, 192),
            ]
        )
        self.last = ConvNorm((96, 128), 1)
        self.head = nn.Linear(128, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores [N,10] of images [N,1,16,16]."""
        x = functional.relu6(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(functional.relu6(self.last(x)).mean((2, 3)))

    def write(self, graph: GraphWriter, x: str) -> None:
        """Write the units, GlobalAveragePool, Flatten and Gemm."""
        x = write_relu6(graph, "stem", self.stem.write(graph, "stem", x))
        for index, block in enumerate(self.blocks):
            x = block.write(graph, f"blocks.{index}", x)
        x = write_relu6(graph, "last", self.last.write(graph, "last", x))
        x = graph.node("Flatten", "", graph.node("GlobalAveragePool", "", x), axis=1)
        write_gemm(graph, "head", self.head, x)


class Encoder(nn.Module):
    """A pre-norm encoder layer: attention with two heads, then two Linears with GELU between."""

    HEADS = 2

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.width = width
        self.norm1 = nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [N,T,width] after attention and the two Linears, each added to its input."""
        normal = self.norm1(x)
        query, key, value = (
            layer(normal).view(*x.shape[:2], self.HEADS, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) / (self.width // self.HEADS) ** 0.5
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        x = x + self.output(mixed)
        return x + self.narrow(functional.gelu(self.widen(self.norm2(x))))

    def _write_heads(self, graph: GraphWriter, scope: str, x: str) -> list[str]:
        split = graph.constant(scope, [0, -1, self.HEADS, self.width // self.HEADS])
        heads = []
        # the exporter merges the key's two transpositions into one
        for part, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
            flat = write_linear(graph, f"{scope}.{part}", getattr(self, part), x)
            heads.append(graph.node("Transpose", scope, graph.node("Reshape", scope, flat, split), perm=perm))
        return heads

    def write(self, graph: GraphWriter, scope: str, x: str) -> str:
        """Write the layer with its attention as two MatMuls around a Softmax."""
        normal = write_layer_norm(graph, f"{scope}.norm1", self.norm1, x)
        query, key, value = self._write_heads(graph, scope, normal)
        scores = graph.node("MatMul", scope, query, key)
        root = graph.constant(scope, float((self.width // self.HEADS) ** 0.5))
        shares = graph.node("Softmax", scope, graph.node("Div", scope, scores, root), axis=-1)
        mixed = graph.node("MatMul", scope, shares, value)
        mixed = graph.node("Transpose", scope, mixed, perm=[0, 2, 1, 3])
        mixed = graph.node("Reshape", scope, mixed, graph.constant(scope, [0, -1, self.width]))
        x = graph.node("Add", scope, x, write_linear(graph, f"{scope}.output", self.output, mixed))
        normal = write_layer_norm(graph, f"{scope}.norm2", self.norm2, x)
        wide = write_gelu(graph, scope, write_linear(graph, f"{scope}.widen", self.widen, normal))
        return graph.node("Add", scope, x, write_linear(graph, f"{scope}.narrow", self.narrow, wide))


class Transformer(nn.Module):
    """A small vision transformer: 36 patches of 4x4, two encoder layers, the mean of the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 88)
        self.position = nn.Parameter(torch.randn(1, 36, 88) * 0.02)
        self.layers = nn.ModuleList([Encoder(88, 128), Encoder(88, 128)])
        self.norm = nn.LayerNorm(88)
        self.head = nn.Linear(88, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores [N,10] of images [N,1,24,24]."""
        patches = x.view(-1, 6, 4, 6, 4).transpose(2, 3).reshape(-1, 36, 16)
        x = self.embed(patches) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))

    def write(self, graph: GraphWriter, x: str) -> None:
        """Write the patches as Reshape, Transpose, Reshape, then the layers and the head."""
        grid = graph.node("Reshape", "", x, graph.constant("", [-1, 6, 4, 6, 4]))
        grid = graph.node("Transpose", "", grid, perm=[0, 1, 3, 2, 4])
        patches = graph.node("Reshape", "", grid, graph.constant("", [-1, 36, 16]))
        position = graph.weight("position", self.position)
        x = graph.node("Add", "", write_linear(graph, "embed", self.embed, patches), position)
        for index, layer in enumerate(self.layers):
            x = layer.write(graph, f"layers.{index}", x)
        x = write_layer_norm(graph, "norm", self.norm, x)
        write_gemm(graph, "head", self.head, graph.node("ReduceMean", "", x, axes=[1], keepdims=0))
