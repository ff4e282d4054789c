"""What a decoder looks like, and the names and shapes of its weights that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
CACHES = ("none", "with-past", "merged")
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder in the manner of Llama.

    Attributes:
        layers: number of decoder layers.
        hidden: width of the residual stream; heads divide it.
        intermediate: width inside the SwiGLU.
        heads: attention heads.
        kv_heads: heads of key and value; they divide heads (grouped-query attention).
        vocabulary: number of tokens.
        precision: type of the weights: fp32, fp16 or bf16.
        cast_weights: each weight goes through a Cast to float32 and all is computed in float32; else in `precision`.
        tied: the head is the transposed embedding, one tensor in the file.
        cache: "none": no KV cache; "with-past": past in, present out; "merged": an If on `use_cache_branch`, with past
            in one branch and without in the other, all weights in the outer graph.
        attention_mask: the model has this input, int64 [batch, past and present tokens].
        position_ids: the model has this input, int64 [batch, tokens]; else it counts from the length of the past.
    """

    layers: int = 2
    hidden: int = 64
    intermediate: int = 160
    heads: int = 4
    kv_heads: int = 2
    vocabulary: int = 256
    precision: str = "fp32"
    cast_weights: bool = False
    tied: bool = False
    cache: str = "with-past"
    attention_mask: bool = True
    position_ids: bool = True
    rope_theta: float = 10000.0
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if self.hidden % (2 * self.heads) or self.heads % self.kv_heads:
            raise ValueError("hidden must be a multiple of 2 * heads, heads one of kv_heads")
        if self.precision not in ITEM_BYTES or self.cache not in CACHES:
            raise ValueError(f"precision is one of {sorted(ITEM_BYTES)}, cache one of {CACHES}")

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads

    @property
    def compute(self) -> str:
        """The precision of activations, of the cache and of the logits."""
        return "fp32" if self.cast_weights else self.precision

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight by name, in the order of use; MatMul weights are [in, out]."""
        shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (self.vocabulary, self.hidden)}
        for layer in range(self.layers):
            shapes |= self._layer_shapes(f"model.layers.{layer}")
        shapes["model.norm.weight"] = (self.hidden,)
        if not self.tied:
            shapes[HEAD] = (self.hidden, self.vocabulary)
        return shapes

    def _layer_shapes(self, layer: str) -> dict[str, tuple[int, ...]]:
        narrow = self.kv_heads * self.head_size
        return {
            f"{layer}.input_layernorm.weight": (self.hidden,),
            f"{layer}.self_attn.q_proj.weight": (self.hidden, self.hidden),
            f"{layer}.self_attn.k_proj.weight": (self.hidden, narrow),
            f"{layer}.self_attn.v_proj.weight": (self.hidden, narrow),
            f"{layer}.self_attn.o_proj.weight": (self.hidden, self.hidden),
            f"{layer}.post_attention_layernorm.weight": (self.hidden,),
            f"{layer}.mlp.gate_proj.weight": (self.hidden, self.intermediate),
            f"{layer}.mlp.up_proj.weight": (self.hidden, self.intermediate),
            f"{layer}.mlp.down_proj.weight": (self.intermediate, self.hidden),
        }

    @property
    def size(self) -> int:
        """Bytes of all weights."""
        return ITEM_BYTES[self.precision] * sum(prod(shape) for shape in self.weight_shapes().values())

    def of_size(self, size: int) -> DecoderConfig:
        """Return this decoder with as many layers as bring its weights nearest to `size` bytes, one at least."""
        one, two = replace(self, layers=1).size, replace(self, layers=2).size
        return replace(self, layers=max(1, 1 + round((size - one) / (two - one))))
