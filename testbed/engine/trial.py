"""A trial of a model that was just loaded: does it run as the engine assumes?

No list of model families could be complete. So two short sequences run packed, as the engine packs
them, and each alone with transformers' own attention; both must lead to the same logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from testbed.engine.model import Model

LENGTHS = (7, 5)
TOLERANCE = 1e-3
"""How far a token's logits may be off, relative to their norm, in float32."""
COARSE_TOLERANCE = 0.2
"""In shorter types; 80 random layers in bfloat16 are off by 0.02, wilder weights by more."""
LAYER_TYPES = ("full_attention", "sliding_attention")


@torch.inference_mode()
def try_out(model: Model) -> None:
    """ValueError, or whatever the modelling code raises, unless the engine can run the model."""
    config = model.module.config
    if others := sorted({*(getattr(config, "layer_types", None) or ())} - {*LAYER_TYPES}):
        raise ValueError(f"layer_types {', '.join(others)}: {' and '.join(LAYER_TYPES)} are built")
    sequences = [
        torch.arange(first, first + length, device=model.device) % model.vocab_size
        for first, length in zip((1, 3), LENGTHS, strict=True)
    ]
    positions = [torch.arange(length, device=model.device) for length in LENGTHS]
    # All but the last token: the last layer leaves one out, as it does while serving.
    wanted = torch.arange(sum(LENGTHS) - 1, device=model.device)
    step = _PlainStep(model)
    packed = model.forward(torch.cat(sequences), torch.cat(positions), wanted, step)
    if sorted(step.layers) != list(range(model.num_layers)):
        raise ValueError(
            f"attention of layers {step.layers}: each of 0 to {model.num_layers - 1} once is needed"
        )
    window = _window(config)
    if window is not None and window < model.context_tokens and not step.windowed:
        raise ValueError(f"sliding_window={window} reaches none of its attention layers")
    alone = _alone(model.module, sequences)
    limit = TOLERANCE if model.dtype == torch.float32 else COARSE_TOLERANCE
    for ours, theirs in zip(packed.tensor_split(LENGTHS[:1]), alone, strict=True):
        theirs = theirs[: len(ours)]
        errors = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)
        # What leaks in from a neighbour shows in the first token, all else in most of them. No
        # other one counts alone: rounding may lead it to another expert. NaN is too far, too.
        error = float(torch.maximum(errors[0], errors.median()))
        if not error <= limit:
            raise ValueError(
                f"packed with another sequence, its logits are off by {error:.2g} of their norm; "
                f"{limit} is allowed"
            )


def _window(config: Any) -> int | None:
    """The sliding window of some of the layers, by the config."""
    layer_types = getattr(config, "layer_types", None) or ("sliding_attention",)
    if "sliding_attention" in layer_types and getattr(config, "use_sliding_window", True):
        return getattr(config, "sliding_window", None) or None
    return None


def _alone(module: Any, sequences: list[torch.Tensor]) -> list[torch.Tensor]:
    """Logits float32[tokens, vocab_size] of each sequence, by transformers' own attention."""
    ours = module.config._attn_implementation
    # The one implementation that leaves nothing out that a model asks for.
    module.set_attn_implementation("eager")
    try:
        return [module(input_ids=ids[None], use_cache=False).logits[0].float() for ids in sequences]
    finally:
        module.set_attn_implementation(ours)


class _PlainStep:
    """Attention within each of the packed sequences, without a pool; see AttentionStep."""

    def __init__(self, model: Model) -> None:
        self.layers: list[int] = []
        self.windowed = False
        tokens = sum(LENGTHS)
        keys = (tokens, model.num_kv_heads, model.head_dim)
        self._shapes = {
            "queries": (tokens, model.num_heads, model.head_dim),
            "keys": keys,
            "values": keys,
        }

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        """[tokens, heads, head_dim]."""
        self.layers.append(layer)
        self.windowed |= window is not None
        for (name, shape), tensor in zip(self._shapes.items(), (query, key, value), strict=True):
            if tensor.shape != shape:
                raise ValueError(
                    f"layer {layer} has {name} [tokens, heads, head_dim] of "
                    f"{list(tensor.shape)}; its config promises {list(shape)}"
                )
        sequences = zip(*(x.split(LENGTHS) for x in (query, key, value)), strict=True)
        return torch.cat([_attention(q, k, v, scaling, window) for q, k, v in sequences])


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, window: int | None
) -> torch.Tensor:
    seen = torch.ones(len(query), len(query), dtype=torch.bool, device=query.device).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    by_head = (tensor.transpose(0, 1) for tensor in (query, key, value))
    attended = scaled_dot_product_attention(
        *by_head, attn_mask=seen, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return attended.transpose(0, 1)
