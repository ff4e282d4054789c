"""BERT's uncased WordPiece with the share of its vocabulary that the bed's sentences need.

`data/bert_uncased_pieces.json` maps those pieces to their ids in the public bert-base-uncased vocabulary
(Apache-2.0). Greedy longest match: "BERT" (arXiv 1810.04805), section 3, and its published tokenizer.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

PIECES = Path(__file__).parent / "data" / "bert_uncased_pieces.json"
START, END = "[CLS]", "[SEP]"


@functools.cache
def _vocabulary() -> dict[str, int]:
    pieces: dict[str, int] = json.loads(PIECES.read_text(encoding="utf-8"))
    return pieces


def tokenize(sentence: str) -> list[int]:
    """Return the ids of a sentence, with the marks of its start and end.

    Raises:
        KeyError: a word needs a piece that the file does not hold.
    """
    pieces = [START]
    for word in re.findall(r"\w+|[^\w\s]", sentence.lower()):
        pieces += _split(word)
    vocabulary = _vocabulary()
    return [vocabulary[piece] for piece in [*pieces, END]]


def _split(word: str) -> list[str]:
    vocabulary = _vocabulary()
    pieces: list[str] = []
    start = 0
    while start < len(word):
        prefix = "##" if start else ""
        stops = range(len(word), start, -1)
        stop = next((stop for stop in stops if prefix + word[start:stop] in vocabulary), None)
        if stop is None:
            raise KeyError(f"no piece of {PIECES.name} begins '{word[start:]}' in the word '{word}'")
        pieces.append(prefix + word[start:stop])
        start = stop
    return pieces
