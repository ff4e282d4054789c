"""Trains the four digit classifiers on scikit-learn's digits and writes models and data sets.

Run by hand: `python sample_models/train_digits.py [NAME ...]`; see README.md for what it needs.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from digits_nets import Cnn, Depthwise, Mlp, Transformer
from onnx_export import GraphWriter, Port, save_arrays
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

FOLDER = Path(__file__).parent
SEED = 0
EVALUATION_IMAGES = 700
CALIBRATION_IMAGES = 256
BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One model: its network, how it sees an image, and how it is trained and exported."""

    net: Callable[[], nn.Module]
    opset: int
    input_name: str
    shape: tuple[int, ...]
    epochs: int
    learning_rate: float

    @property
    def side(self) -> int:
        """Pixels along one edge of the image."""
        return math.isqrt(math.prod(self.shape))


SAMPLES = {
    "digits_mlp": Sample(net=Mlp, opset=11, input_name="pixels", shape=(64,), epochs=150, learning_rate=2e-3),
    "digits_cnn": Sample(net=Cnn, opset=18, input_name="image", shape=(1, 16, 16), epochs=40, learning_rate=3e-3),
    "digits_depthwise": Sample(
        net=Depthwise, opset=13, input_name="image", shape=(1, 16, 16), epochs=60, learning_rate=3e-3
    ),
    "digits_transformer": Sample(
        net=Transformer, opset=17, input_name="image", shape=(1, 24, 24), epochs=160, learning_rate=2e-3
    ),
}


def enlarge(images: np.ndarray, side: int) -> np.ndarray:
    """Resize images [N,8,8] in 0..1 bilinearly (half-pixel centres) to 8-bit grey levels, scaled to 0..1."""
    old = images.shape[1]
    centres = np.clip((np.arange(side) + 0.5) * old / side - 0.5, 0, old - 1)
    weights = np.clip(1 - np.abs(centres[:, None] - np.arange(old)), 0, 1)
    larger = weights @ images @ weights.T
    return (np.rint(larger * 255) / 255).astype(np.float32)


def split_digits() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return (training images, evaluation images), (their labels), stratified by label and fixed."""
    digits = load_digits()
    images = digits.images / 16.0
    parts = train_test_split(
        images, digits.target, test_size=EVALUATION_IMAGES, stratify=digits.target, random_state=SEED
    )
    return parts[:2], parts[2:]


def augment(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Turn, scale and shift each image [N,1,H,W] a little and add noise."""
    count = len(images)
    draw = torch.rand(4, count, generator=generator) * 2 - 1
    angle, scale = draw[0] * math.radians(12), 1 + 0.1 * draw[1]
    affine = torch.zeros(count, 2, 3)
    affine[:, 0, 0] = affine[:, 1, 1] = torch.cos(angle) * scale
    affine[:, 0, 1], affine[:, 1, 0] = -torch.sin(angle) * scale, torch.sin(angle) * scale
    affine[:, :, 2] = draw[2:].T * 0.15
    grid = functional.affine_grid(affine, list(images.shape), align_corners=False)
    moved = functional.grid_sample(images, grid, align_corners=False)
    return (moved + 0.05 * torch.randn(images.shape, generator=generator)).clamp(0, 1)


def train(sample: Sample, images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    """Train a network on images [N,1,H,W]; its BatchNorm statistics end as those of the clean images."""
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    net = sample.net()
    steps = sample.epochs * math.ceil(len(images) / BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), sample.learning_rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, sample.learning_rate, steps, pct_start=0.1)
    for _ in range(sample.epochs):
        for rows in torch.randperm(len(images), generator=generator).split(BATCH):
            scores = net(augment(images[rows], generator).view(-1, *sample.shape))
            loss = functional.cross_entropy(scores, labels[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    settle_batch_norm(net, images.view(-1, *sample.shape))
    return net.eval()


def settle_batch_norm(net: nn.Module, images: torch.Tensor) -> None:
    """Replace the running averages by the statistics of all clean training images in one batch."""
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        net.train()(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def export(name: str, net: nn.Module) -> Path:
    """Write NAME.onnx."""
    sample = SAMPLES[name]
    graph = GraphWriter(sample.opset)
    net.write(graph, sample.input_name)
    path = FOLDER / f"{name}.onnx"
    source = Port(name=sample.input_name, shape=("batch", *sample.shape))
    graph.save(path, (source, Port(name="scores", shape=("batch", 10))))
    return path


def scores_of(path: Path, net: nn.Module, inputs: np.ndarray) -> np.ndarray:
    """Run the written model and hold it to the network it came from."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {session.get_inputs()[0].name: inputs})
    with torch.no_grad():
        expected = net(torch.from_numpy(inputs)).numpy()
    difference = float(np.abs(scores - expected).max())
    if difference > 1e-4:
        raise RuntimeError(f"{path.name} differs from its network by {difference:.2e}.")
    return scores


def build(name: str) -> None:
    """Train one model, write its three files and print its figures."""
    sample, began = SAMPLES[name], time.perf_counter()
    (train_images, eval_images), (train_labels, eval_labels) = split_digits()
    train_inputs, eval_inputs = (
        enlarge(part, sample.side).reshape(-1, *sample.shape) for part in (train_images, eval_images)
    )
    square = torch.from_numpy(train_inputs).view(-1, 1, sample.side, sample.side)
    net = train(sample, square, torch.from_numpy(train_labels))
    path = export(name, net)
    save_arrays(FOLDER / f"{name}.calib.npz", {sample.input_name: train_inputs[:CALIBRATION_IMAGES]})
    save_arrays(FOLDER / f"{name}.eval.npz", {sample.input_name: eval_inputs, "labels": eval_labels.astype(np.int64)})
    correct = scores_of(path, net, eval_inputs).argmax(1) == eval_labels
    train_correct = scores_of(path, net, train_inputs).argmax(1) == train_labels
    print(
        f"{name}: opset {sample.opset}, {path.stat().st_size} bytes, accuracy {correct.mean():.4f} "
        f"(training images {train_correct.mean():.4f}), {time.perf_counter() - began:.0f} s"
    )


def main() -> None:
    """Build the models named on the command line, or all four."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SAMPLES)}; all if none")
    names = parser.parse_args().names or list(SAMPLES)
    if unknown := sorted(set(names) - set(SAMPLES)):
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(SAMPLES)}")
    torch.set_num_threads(1)
    for name in names:
        build(name)


if __name__ == "__main__":
    main()
