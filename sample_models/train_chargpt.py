"""Trains a small character GPT on the text of Python's language reference (pydoc_data.topics).

Run by hand: `python sample_models/train_chargpt.py`; see README.md for what it needs.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import onnxruntime
import torch
from onnx_export import GraphWriter, Port, save_arrays, write_gelu, write_layer_norm, write_linear
from torch import nn
from torch.nn import functional

FOLDER = Path(__file__).parent
SEED = 0
CONTEXT = 64
WIDTH, HIDDEN, LAYERS, HEADS = 96, 320, 2, 4
BATCH, STEPS, LEARNING_RATE = 32, 4000, 3e-3
RARE = 20  # characters met less often become UNKNOWN
UNKNOWN = "\ufffd"
CALIBRATION_ROWS, EVALUATION_ROWS = 128, 500


def split_text() -> tuple[str, str]:
    """Return training and evaluation text: every tenth topic is for evaluation.

    Topics quote each other, so a paragraph is kept once, and one of the evaluation topics never trains.
    """
    names = sorted(topics)
    held_out = _paragraphs(names[::10])
    rest = [name for index, name in enumerate(names) if index % 10]
    training = [paragraph for paragraph in _paragraphs(rest) if paragraph not in set(held_out)]
    return "\n\n".join(training), "\n\n".join(held_out)


def _paragraphs(names: list[str]) -> list[str]:
    return list(dict.fromkeys(part for name in names for part in topics[name].split("\n\n")))


def alphabet(text: str) -> str:
    """Return the characters of the model in code order, UNKNOWN last."""
    return "".join(sorted(char for char, count in Counter(text).items() if count >= RARE)) + UNKNOWN


def encode(text: str, characters: str) -> np.ndarray:
    """Return the text as int64 positions in the alphabet."""
    unknown = len(characters) - 1
    codes = {char: index for index, char in enumerate(characters)}
    return np.array([codes.get(char, unknown) for char in text], np.int64)


class Block(nn.Module):
    """A pre-norm decoder layer; query, key and value come out of one Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.widen = nn.Linear(WIDTH, HIDDEN)
        self.narrow = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return x [N,T,WIDTH] after causal attention and the two Linears, each added to its input."""
        query, key, value = (
            part.view(*x.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(WIDTH, dim=2)
        )
        scores = query @ key.transpose(2, 3) / (WIDTH // HEADS) ** 0.5 + mask
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        x = x + self.output(mixed)
        return x + self.narrow(functional.gelu(self.widen(self.norm2(x))))

    def _write_attention(self, graph: GraphWriter, scope: str, x: str, sizes: dict[str, str]) -> str:
        flat = write_linear(graph, f"{scope}.qkv", self.qkv, x)
        split = graph.constant(scope, [WIDTH] * 3)
        parts = graph.node("Split", scope, flat, split, outputs=3, axis=2)
        heads = []
        for part, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True):
            shaped = graph.node("Reshape", scope, part, sizes["heads"])
            heads.append(graph.node("Transpose", scope, shaped, perm=perm))
        root = graph.constant(scope, float((WIDTH // HEADS) ** 0.5))
        scores = graph.node("Div", scope, graph.node("MatMul", scope, heads[0], heads[1]), root)
        shares = graph.node("Softmax", scope, graph.node("Add", scope, scores, sizes["mask"]), axis=-1)
        mixed = graph.node("Transpose", scope, graph.node("MatMul", scope, shares, heads[2]), perm=[0, 2, 1, 3])
        return graph.node("Reshape", scope, mixed, sizes["flat"])

    def write(self, graph: GraphWriter, scope: str, x: str, *, sizes: dict[str, str]) -> str:
        """Write the layer; `sizes` names the mask and the shape tensors that all layers share."""
        normal = write_layer_norm(graph, f"{scope}.norm1", self.norm1, x)
        mixed = self._write_attention(graph, f"{scope}.attention", normal, sizes)
        x = graph.node("Add", scope, x, write_linear(graph, f"{scope}.output", self.output, mixed))
        normal = write_layer_norm(graph, f"{scope}.norm2", self.norm2, x)
        wide = write_gelu(graph, scope, write_linear(graph, f"{scope}.widen", self.widen, normal))
        return graph.node("Add", scope, x, write_linear(graph, f"{scope}.narrow", self.narrow, wide))


class CharGpt(nn.Module):
    """Embeddings, causal layers, and a head that shares the character embedding's weight."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        for table in (self.characters, self.positions):
            nn.init.normal_(table.weight, std=0.05)
        self.register_buffer("mask", torch.triu(torch.full((1, 1, CONTEXT, CONTEXT), -1e9), 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits [N,T,characters] of the next character; ids int64 [N,T], T at most CONTEXT."""
        length = ids.shape[1]
        x = self.characters(ids) + self.positions(torch.arange(length))
        for block in self.blocks:
            x = block(x, self.mask[:, :, :length, :length])
        return self.norm(x) @ self.characters.weight.T

    def _write_sizes(self, graph: GraphWriter, ids: str) -> dict[str, str]:
        shape = graph.node("Shape", "", ids)
        zero, one = graph.constant("", [0]), graph.constant("", [1])
        batch, length = graph.node("Gather", "", shape, zero), graph.node("Gather", "", shape, one)
        split = graph.constant("", [HEADS, WIDTH // HEADS])
        mask = graph.weight("mask", self.mask)
        for axis in (2, 3):
            mask = graph.node("Slice", "", mask, zero, length, graph.constant("", [axis]), one)
        return {
            "mask": mask,
            "positions": graph.node(
                "Slice", "", graph.weight("positions.weight", self.positions.weight), zero, length, zero, one
            ),
            "heads": graph.node("Concat", "", batch, length, split, axis=0),
            "flat": graph.node("Concat", "", batch, length, graph.constant("", [WIDTH]), axis=0),
        }

    def write(self, graph: GraphWriter, ids: str) -> None:
        """Write the model; shapes are read from ids at run time."""
        sizes = self._write_sizes(graph, ids)
        table = graph.weight("characters.weight", self.characters.weight)
        x = graph.node("Add", "", graph.node("Gather", "characters", table, ids), sizes["positions"])
        for index, block in enumerate(self.blocks):
            x = block.write(graph, f"blocks.{index}", x, sizes=sizes)
        x = write_layer_norm(graph, "norm", self.norm, x)
        graph.node("MatMul", "", x, graph.node("Transpose", "", table, perm=[1, 0]))


def train(codes: np.ndarray, characters: int) -> CharGpt:
    """Train on random windows of the text."""
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    net = CharGpt(characters)
    text = torch.from_numpy(codes)
    optimizer = torch.optim.AdamW(net.parameters(), LEARNING_RATE, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, STEPS, pct_start=0.05)
    for step in range(STEPS):
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=generator)
        window = text[starts + torch.arange(CONTEXT + 1)]
        loss = functional.cross_entropy(net(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 500 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return net.eval()


def windows(codes: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and next ids [rows,CONTEXT] at evenly spaced places of the text."""
    starts = np.arange(rows) * ((len(codes) - CONTEXT - 1) // rows)
    places = starts[:, None] + np.arange(CONTEXT)
    return codes[places], codes[places + 1]


def perplexity(path: Path, net: CharGpt, ids: np.ndarray, labels: np.ndarray) -> float:
    """Return exp(mean cross entropy) of the written model, held to the network it came from."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"ids": ids})
    with torch.no_grad():
        difference = float(np.abs(net(torch.from_numpy(ids)).numpy() - logits).max())
    if difference > 1e-3:
        raise RuntimeError(f"{path.name} differs from its network by {difference:.2e}.")
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    picked = np.take_along_axis(shifted, labels[..., None], -1)[..., 0]
    return float(np.exp(np.mean(np.log(np.exp(shifted).sum(-1)) - picked)))


def main() -> None:
    """Train the model, write its three files and print its figures."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    training_text, evaluation_text = split_text()
    characters = alphabet(training_text)
    training, evaluation = (encode(text, characters) for text in (training_text, evaluation_text))
    net = train(training, len(characters))

    graph = GraphWriter(14)
    net.write(graph, "ids")
    path = FOLDER / "chargpt.onnx"
    source = Port(name="ids", shape=("batch", "sequence"), dtype="int64")
    result = Port(name="logits", shape=("batch", "sequence", len(characters)))
    graph.save(path, (source, result), {"characters": json.dumps(characters)})

    ids, labels = windows(evaluation, EVALUATION_ROWS)
    save_arrays(FOLDER / "chargpt.calib.npz", {"ids": windows(training, CALIBRATION_ROWS)[0]})
    save_arrays(FOLDER / "chargpt.eval.npz", {"ids": ids, "labels": labels})
    print(
        f"chargpt: {len(training)} training characters, {len(evaluation)} evaluation characters, "
        f"{len(characters)} symbols, {path.stat().st_size} bytes, "
        f"perplexity {perplexity(path, net, ids, labels):.3f}, {time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
