"""Trains a small decoder in the manner of Llama on word pieces of Python's language reference (pydoc_data.topics).

Run by hand: `python sample_models/train_pydoc_decoder.py`; see README.md for what it needs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from decoder import DecoderConfig, write_decoder
from decoder.config import EMBEDDING
from torch import nn
from torch.nn import functional
from train_chargpt import split_text

FOLDER = Path(__file__).parent / "pydoc_decoder"
SEED = 0
CONFIG = DecoderConfig(
    layers=2, hidden=128, intermediate=352, heads=4, kv_heads=2, vocabulary=512, tied=True, cache="with-past"
)
CONTEXT = 128
BATCH, STEPS, LEARNING_RATE = 16, 1500, 4e-3
CALIBRATION_ROWS, EVALUATION_ROWS, ROW = 64, 64, 96


def merge(codes: np.ndarray, pair: tuple[int, int], piece: int) -> np.ndarray:
    """Replace each occurrence of a pair of neighbours by a new piece, from the left."""
    found = np.flatnonzero((codes[:-1] == pair[0]) & (codes[1:] == pair[1]))
    if pair[0] == pair[1]:  # of three in a row the first two make a pair
        starts = np.concatenate([[True], np.diff(found) > 1])
        run = np.arange(len(found)) - np.maximum.accumulate(np.where(starts, np.arange(len(found)), 0))
        found = found[run % 2 == 0]
    codes = codes.copy()
    codes[found] = piece
    return np.delete(codes, found + 1)


def learn_pieces(data: bytes, vocabulary: int) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Merge the most frequent pair until there are `vocabulary` pieces (byte pair encoding); the text encoded."""
    codes = np.frombuffer(data, np.uint8).astype(np.int64)
    pairs: list[tuple[int, int]] = []
    for piece in range(256, vocabulary):
        counts = np.bincount(codes[:-1] * vocabulary + codes[1:])
        pair = divmod(int(counts.argmax()), vocabulary)
        pairs.append(pair)
        codes = merge(codes, pair, piece)
    return pairs, codes


def encode(data: bytes, pairs: list[tuple[int, int]]) -> np.ndarray:
    """Return the int64 pieces of a text: each merge in the order it was learned."""
    codes = np.frombuffer(data, np.uint8).astype(np.int64)
    for index, pair in enumerate(pairs):
        codes = merge(codes, pair, 256 + index)
    return codes


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(CONFIG.hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x over its root mean square along the last axis, times the gain."""
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + CONFIG.epsilon)


class Layer(nn.Module):
    """One decoder layer: grouped-query attention with rotary positions, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        narrow = CONFIG.kv_heads * CONFIG.head_size
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
        self.self_attn = nn.ModuleDict(
            {
                f"{part}_proj": nn.Linear(CONFIG.hidden, width, bias=False)
                for part, width in (("q", CONFIG.hidden), ("k", narrow), ("v", narrow), ("o", CONFIG.hidden))
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(CONFIG.hidden, CONFIG.intermediate, bias=False),
                "up_proj": nn.Linear(CONFIG.hidden, CONFIG.intermediate, bias=False),
                "down_proj": nn.Linear(CONFIG.intermediate, CONFIG.hidden, bias=False),
            }
        )

    def forward(self, x: torch.Tensor, waves: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return x [N,T,hidden] after both parts, each added to its input; waves: cos and sin [T,head size]."""
        x = x + self._attend(self.input_layernorm(x), waves)
        normal = self.post_attention_layernorm(x)
        gate = functional.silu(self.mlp["gate_proj"](normal))
        return x + self.mlp["down_proj"](gate * self.mlp["up_proj"](normal))

    def _attend(self, x: torch.Tensor, waves: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        query, key, value = (
            self.self_attn[f"{part}_proj"](x).unflatten(-1, (-1, CONFIG.head_size)).transpose(1, 2) for part in "qkv"
        )
        query, key = (_rotate(part, *waves) for part in (query, key))
        key, value = (part.repeat_interleave(CONFIG.heads // CONFIG.kv_heads, 1) for part in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.self_attn["o_proj"](mixed.transpose(1, 2).flatten(2))


def _rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Decoder(nn.Module):
    """Embedding, layers, norm, and a head that is the transposed embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG.vocabulary, CONFIG.hidden)
        self.layers = nn.ModuleList([Layer() for _ in range(CONFIG.layers)])
        self.norm = Norm()
        nn.init.normal_(self.embed_tokens.weight, std=0.05)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits [N,T,vocabulary] of the next piece; ids int64 [N,T]."""
        half = CONFIG.head_size // 2
        frequencies = CONFIG.rope_theta ** (-torch.arange(half) / half)
        angles = torch.arange(ids.shape[1])[:, None] * frequencies
        angles = torch.cat([angles, angles], -1)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, (angles.cos(), angles.sin()))
        return self.norm(x) @ self.embed_tokens.weight.T

    def weights(self, name: str, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        """Yield the weight as the generator asks for it: MatMul weights are [in, out]."""
        values = self.get_parameter(name.removeprefix("model.")).detach().numpy()
        yield np.ascontiguousarray(values if values.ndim == 1 or name == EMBEDDING else values.T).reshape(shape)


def train(codes: np.ndarray) -> Decoder:
    """Train on random windows of the text."""
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    net = Decoder()
    text = torch.from_numpy(codes)
    optimizer = torch.optim.AdamW(net.parameters(), LEARNING_RATE, weight_decay=0.1)
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


def rows(codes: np.ndarray, count: int) -> np.ndarray:
    """Return ids [count,ROW] at evenly spaced places of the text."""
    starts = np.arange(count) * ((len(codes) - ROW) // count)
    return codes[starts[:, None] + np.arange(ROW)]


def save_ids(path: Path, ids: np.ndarray) -> None:
    """Write one JSON object a row."""
    path.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in ids.tolist()), "utf-8")


def perplexity(path: Path, net: Decoder, ids: np.ndarray) -> float:
    """Return exp(mean cross entropy of the next piece) of the written model, held to the network it came from."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    count, length = ids.shape
    empty = np.zeros((count, CONFIG.kv_heads, 0, CONFIG.head_size), np.float32)
    feed = {port.name: empty for port in session.get_inputs() if port.name.startswith("past_key_values")}
    feed |= {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    feed["position_ids"] = np.tile(np.arange(length), (count, 1))
    logits = session.run(["logits"], feed)[0].astype(np.float64)
    with torch.no_grad():
        difference = float(np.abs(net(torch.from_numpy(ids)).numpy() - logits).max())
    if difference > 1e-3:
        raise RuntimeError(f"{path.name} differs from its network by {difference:.2e}.")
    shifted = logits - logits.max(-1, keepdims=True)
    chances = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return float(np.exp(-np.take_along_axis(chances[:, :-1], ids[:, 1:, None], -1).mean()))


def main() -> None:
    """Train the model, write its three files and print its figures."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    training_text, evaluation_text = (text.encode() for text in split_text())
    pairs, training = learn_pieces(training_text, CONFIG.vocabulary)
    evaluation = encode(evaluation_text, pairs)
    net = train(training)

    FOLDER.mkdir(exist_ok=True)
    path = write_decoder(FOLDER / "model.onnx", CONFIG, net.weights, files=0)
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {"pieces": json.dumps(pairs)})
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    save_ids(FOLDER / "calib.jsonl", rows(training, CALIBRATION_ROWS))
    save_ids(FOLDER / "eval.jsonl", rows(evaluation, EVALUATION_ROWS))
    print(
        f"pydoc_decoder: {len(training)} training pieces, {len(evaluation)} evaluation pieces, "
        f"{path.stat().st_size} bytes, perplexity {perplexity(path, net, rows(evaluation, EVALUATION_ROWS)):.3f}, "
        f"{time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
