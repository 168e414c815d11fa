"""What a step costs to run: accelerators, model shapes, and how well engines use the hardware.

Sizes are bytes, rates are per second, times are seconds. Peaks are the vendors' numbers for dense
matrices; what an engine reaches of them is in `Efficiency`, which says where it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType


def _positive(item: object, *names: str) -> None:
    for name in names:
        value = getattr(item, name)
        if not value > 0:
            raise ValueError(f"{name}={value}: a positive number is needed")


def _not_negative(item: object, *names: str) -> None:
    for name in names:
        value = getattr(item, name)
        if not value >= 0:
            raise ValueError(f"{name}={value}: at least 0 is needed")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One card, or one CPU socket's share.

    peak_flops: dense bf16 FLOP/s. link_bandwidth: bytes/s one card can send to its peers, one
    direction; 0 where tensor parallelism is not possible. link_latency: seconds that an all-reduce
    of a few bytes takes (an assumption; no vendor states it).
    """

    name: str
    peak_flops: float
    memory_bandwidth: float
    memory_bytes: float
    link_bandwidth: float = 0.0
    link_latency: float = 0.0

    def __post_init__(self) -> None:
        _positive(self, "peak_flops", "memory_bandwidth", "memory_bytes")
        _not_negative(self, "link_bandwidth", "link_latency")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The dimensions of a dense Llama-style transformer, named as in Hugging Face's config.

    KV is kept in the type of the weights; for fp32 use dataclasses.replace(model,
    bytes_per_parameter=4). attention_bias: q, k and v have a bias (Qwen2).
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied_embeddings: bool = False
    attention_bias: bool = False
    bytes_per_parameter: int = 2

    def __post_init__(self) -> None:
        _positive(self, *(f.name for f in fields(self) if f.type == "int"))
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads}: a divisor of num_heads="
                f"{self.num_heads} is needed"
            )

    @property
    def linear_parameters(self) -> int:
        """Weights of the projections and the MLP in all layers."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def linear_flops_per_token(self) -> int:
        """FLOPs of the layers' matrix products for one token; attention and lm_head apart."""
        return 2 * self.linear_parameters

    @property
    def lm_head_flops_per_row(self) -> int:
        """FLOPs of one row of logits."""
        return 2 * self.vocab_size * self.hidden_size

    @property
    def attention_flops_per_pair(self) -> int:
        """FLOPs of one (query, key) pair in all layers: q.k and the weighted sum of v."""
        return 4 * self.num_layers * self.num_heads * self.head_dim

    @property
    def weight_bytes_per_step(self) -> int:
        """Bytes of weights that every step reads: the layers and lm_head, not the embedding."""
        lm_head = self.vocab_size * self.hidden_size
        return self.bytes_per_parameter * (self.linear_parameters + lm_head)

    @property
    def num_parameters(self) -> int:
        """All parameters, norms and biases included."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        norms = (2 * self.num_layers + 1) * self.hidden_size
        bias = self.head_dim * (self.num_heads + 2 * self.num_kv_heads)
        biases = self.num_layers * bias if self.attention_bias else 0
        return self.linear_parameters + embeddings + norms + biases

    @property
    def parameter_bytes(self) -> int:
        """Memory that the weights take, over all cards."""
        return self.bytes_per_parameter * self.num_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in all layers, over all cards."""
        kv_size = self.num_kv_heads * self.head_dim
        return 2 * self.num_layers * kv_size * self.bytes_per_parameter

    def check_tp(self, tp: int) -> None:
        """Raise ValueError unless the attention heads split evenly over `tp` cards."""
        if tp < 1 or self.num_kv_heads % tp:
            raise ValueError(
                f"tp={tp}: a divisor of the {self.num_kv_heads} KV heads of {self.name} is needed"
            )


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The five constants of the roofline for one engine on one card.

    step_overhead: seconds a step (t0). row_overhead: seconds a row of the batch (c). mfu,
    mfu_attention, bandwidth: reached shares of peak FLOP/s in matrix products, of peak FLOP/s in
    attention, of memory bandwidth; in (0, 1]. source: where the numbers come from.
    """

    step_overhead: float
    row_overhead: float
    mfu: float
    mfu_attention: float
    bandwidth: float
    source: str

    def __post_init__(self) -> None:
        _not_negative(self, "step_overhead", "row_overhead")
        for name in ("mfu", "mfu_attention", "bandwidth"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ValueError(f"{name}={value}: a share of peak in (0, 1] is needed")


HARDWARE: Mapping[str, Accelerator] = MappingProxyType(
    {
        accelerator.name: accelerator
        for accelerator in (
            # NVIDIA A10G data sheet (the AWS G5 card; an A10 has other tensor cores); PCIe 4.0 x16.
            Accelerator("a10g", 70e12, 0.600e12, 24e9, 32e9, 20e-6),
            # NVIDIA A100 data sheet, 80 GB SXM: NVLink 600 GB/s, both directions together.
            Accelerator("a100-80", 312e12, 2.039e12, 80e9, 300e9, 10e-6),
            # NVIDIA H100 data sheet, SXM: 1 979 TFLOPS with sparsity; NVLink 900 GB/s.
            Accelerator("h100", 989.5e12, 3.35e12, 80e9, 450e9, 10e-6),
            # NVIDIA H200 data sheet, SXM: as H100, with 141 GB at 4.8 TB/s.
            Accelerator("h200", 989.5e12, 4.8e12, 141e9, 450e9, 10e-6),
            # NVIDIA L40S data sheet: no NVLink; PCIe 4.0 x16.
            Accelerator("l40s", 362.05e12, 0.864e12, 48e9, 32e9, 20e-6),
            # Two Zen 4 cores of a server: 32 fp32 FLOP a cycle each (AMD's optimization guide) at
            # 2.6 GHz, not bf16. The bandwidth is what two cores may draw, an assumption.
            Accelerator("cpu", 166e9, 40e9, 24e9),
        )
    }
)
"""Accelerators by name."""

MODELS: Mapping[str, ModelShape] = MappingProxyType(
    {
        model.name: model
        for model in (
            # config.json of meta-llama/Llama-3.1-8B, meta-llama/Llama-3.1-70B,
            # meta-llama/Llama-2-7b-hf, Qwen/Qwen2.5-7B and HuggingFaceTB/SmolLM2-135M.
            ModelShape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256),
            ModelShape("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256),
            ModelShape("llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000),
            ModelShape("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, attention_bias=True),
            ModelShape("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, tied_embeddings=True),
        )
    }
)
"""Model shapes by name."""

_KERNELS = "fitted to kernel times of aiconfigurator-core, Llama-3.1-8B, tp 1: "
_GUESS = "assumption, not fitted to any measurement"

EFFICIENCY: Mapping[tuple[str, str], Efficiency] = MappingProxyType(
    {
        ("h100", "vllm"): Efficiency(1.78e-3, 6.3e-6, 0.71, 0.69, 0.94, _KERNELS + "vLLM 0.24"),
        ("h100", "sglang"): Efficiency(
            1.80e-3, 3.3e-6, 0.68, 0.63, 0.93, _KERNELS + "SGLang 0.5.14"
        ),
        ("h200", "vllm"): Efficiency(1.91e-3, 2.1e-6, 0.77, 0.65, 0.93, _KERNELS + "vLLM 0.24"),
        ("h200", "sglang"): Efficiency(
            1.54e-3, 2.7e-6, 0.64, 0.59, 0.92, _KERNELS + "SGLang 0.5.14"
        ),
        ("a100-80", "vllm"): Efficiency(2.19e-3, 8.5e-6, 0.72, 0.61, 0.76, _KERNELS + "vLLM 0.14"),
        ("a100-80", "sglang"): Efficiency(
            1.13e-3, 34.8e-6, 0.70, 0.62, 0.68, _KERNELS + "SGLang 0.5.10"
        ),
        ("a10g", "vllm"): Efficiency(2.2e-3, 9e-6, 0.65, 0.50, 0.80, _GUESS),
        ("a10g", "sglang"): Efficiency(2.2e-3, 9e-6, 0.65, 0.50, 0.80, _GUESS),
        ("l40s", "vllm"): Efficiency(1.8e-3, 6e-6, 0.65, 0.50, 0.80, _GUESS),
        ("l40s", "sglang"): Efficiency(1.8e-3, 6e-6, 0.65, 0.50, 0.80, _GUESS),
        ("cpu", "testbed"): Efficiency(5e-3, 100e-6, 0.40, 0.20, 0.80, _GUESS),
    }
)
"""Constants by (accelerator, engine).

The tests hold eleven step times per (card, engine) against the fits: three cold prefills, two
chunks after a prefix, six decodes. The kernel times leave out the CPU's scheduling gaps.
h200/vllm and a100-80/sglang were fitted to those eleven alone: the smallest root-mean-square
relative error, for h200/vllm among constants whose mean decode error is at most 3 %, which costs it
10 % on the 8 192-token prefill.
"""


def get_accelerator(name: str) -> Accelerator:
    """The accelerator of HARDWARE; ValueError lists the names."""
    if name not in HARDWARE:
        raise ValueError(f"accelerator={name!r}: one of {', '.join(HARDWARE)} is needed")
    return HARDWARE[name]


def get_model(name: str) -> ModelShape:
    """The model shape of MODELS; ValueError lists the names."""
    if name not in MODELS:
        raise ValueError(f"model={name!r}: one of {', '.join(MODELS)} is needed")
    return MODELS[name]


def get_efficiency(accelerator: str, engine: str) -> Efficiency:
    """The constants of EFFICIENCY; ValueError lists the engines known on that accelerator."""
    if (accelerator, engine) not in EFFICIENCY:
        engines = [e for a, e in EFFICIENCY if a == get_accelerator(accelerator).name]
        raise ValueError(
            f"engine={engine!r} on {accelerator}: one of {', '.join(engines)} is needed"
        )
    return EFFICIENCY[accelerator, engine]


def kv_pool_tokens(
    model: ModelShape,
    accelerator: Accelerator,
    tp: int = 1,
    utilisation: float = 0.9,
    reserve_bytes: float = 3e9,
) -> int:
    """Tokens whose KV fits in what the weights leave free on `tp` cards.

    utilisation: share of a card's memory the engine may take. reserve_bytes: activations, graphs
    and workspace of one card. ValueError if the weights leave no room.
    """
    model.check_tp(tp)
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation={utilisation}: a share of memory in (0, 1] is needed")
    if not reserve_bytes >= 0:
        raise ValueError(f"reserve_bytes={reserve_bytes}: at least 0 is needed")
    usable = utilisation * accelerator.memory_bytes - reserve_bytes
    weights = model.parameter_bytes / tp
    tokens = int((usable - weights) / (model.kv_bytes_per_token / tp))
    if tokens < 1:
        raise ValueError(
            f"{model.name} does not fit {accelerator.name} at tp={tp}: its weights take "
            f"{weights / 1e9:.2f} GB a card, {usable / 1e9:.2f} GB are usable (utilisation="
            f"{utilisation}, reserve_bytes={reserve_bytes:g}); a larger tp or card is needed"
        )
    return tokens
