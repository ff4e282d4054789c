"""The text that a feed of token ids holds: which token follows each one, and which are padding."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from quantool.data.decoder_inputs import IDS, MASK
from quantool.schema import AnyArray, Feed

#: what exporters call the scores of the next token
LOGITS: Final = "logits"


def next_tokens(feed: Feed, logits: AnyArray) -> NDArray[np.int64] | None:
    """Int64 [batch, tokens]: the id that follows each token of the feed, -1 for the last one and for padding.

    None where the feed has no token ids that fit logits [batch, tokens, vocabulary].
    """
    ids = feed.get(IDS)
    if ids is None or logits.ndim != 3 or ids.shape != logits.shape[:2]:
        return None
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < logits.shape[-1]:
        return None
    targets = np.full(ids.shape, -1, np.int64)
    targets[:, :-1] = ids[:, 1:]
    shown = shown_tokens(feed, logits)
    if shown is not None:
        targets[~shown] = -1
        targets[:, :-1][~shown[:, 1:]] = -1
    return targets


def shown_tokens(feed: Feed, logits: AnyArray) -> NDArray[np.bool_] | None:
    """Bool [batch, tokens]: the tokens that are no padding; None where the feed has no mask that fits."""
    mask = feed.get(MASK)
    if mask is None or logits.ndim != 3 or mask.ndim != 2:
        return None
    if len(mask) != len(logits) or mask.shape[1] < logits.shape[1]:
        return None
    return np.asarray(mask[:, mask.shape[1] - logits.shape[1] :] != 0)
