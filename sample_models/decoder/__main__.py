"""Writes a decoder of any size: `python -m sample_models.decoder OUT.onnx --size 4G --precision fp16`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .config import CACHES, ITEM_BYTES, DecoderConfig
from .random_weights import RandomWeights, random_ids
from .write import write_decoder

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SIZES = ("layers", "hidden", "intermediate", "heads", "kv_heads", "vocabulary")


def parse_size(text: str) -> int:
    """Return bytes: `4G`, `512M`, `1.5G`, or a plain number."""
    unit = UNITS.get(text[-1:].upper(), 1)
    return int(float(text[:-1] if unit > 1 else text) * unit)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sample_models.decoder", description=__doc__)
    parser.add_argument("output", type=Path)
    sizes = DecoderConfig(layers=16, hidden=2048, intermediate=5632, heads=32, kv_heads=8, vocabulary=32000)
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(sizes, name))
    parser.add_argument("--size", type=parse_size, help="as many layers as bring the weights nearest to it: 4G, 512M")
    parser.add_argument("--precision", choices=sorted(ITEM_BYTES), default="fp32")
    parser.add_argument("--cast-weights", action="store_true", help="Cast each weight to float32 where it is used")
    parser.add_argument("--tied", action="store_true", help="the head is the transposed embedding")
    parser.add_argument("--cache", choices=CACHES, default="with-past")
    parser.add_argument("--no-attention-mask", dest="attention_mask", action="store_false")
    parser.add_argument("--no-position-ids", dest="position_ids", action="store_false")
    parser.add_argument("--files", type=int, default=1, help="external data files; 0: all in the model file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=Path, help="write random token ids there too, as JSON Lines")
    return parser.parse_args()


def main() -> None:
    """Write the model that the command line asks for."""
    options = _arguments()
    flags = ("precision", "cast_weights", "tied", "cache", "attention_mask", "position_ids")
    config = DecoderConfig(**{name: getattr(options, name) for name in (*SIZES, *flags)})
    if options.size:
        config = config.of_size(options.size)
    write_decoder(options.output, config, RandomWeights(config, options.seed), files=options.files)
    if options.tokens:
        rows = random_ids(config, 32, 64, options.seed).tolist()
        options.tokens.write_text("".join(json.dumps({"input_ids": [row]}) + "\n" for row in rows), "utf-8")
    print(f"{options.output}: {config.layers} layers, {config.size:,} bytes of weights")


if __name__ == "__main__":
    main()
