"""Model shapes, cards and what fits on them, against published and hand-computed numbers."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from testbed.sim.hardware import (
    EFFICIENCY,
    HARDWARE,
    MODELS,
    Accelerator,
    Efficiency,
    ModelShape,
    get_accelerator,
    get_efficiency,
    get_model,
    kv_pool_tokens,
)

LLAMA = MODELS["llama-3.1-8b"]
FITTED = {(card, engine) for card in ("h100", "h200", "a100-80") for engine in ("vllm", "sglang")}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("qwen2.5-7b", 7_615_616_512),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_parameter_count_is_the_one_the_model_card_states(name: str, parameters: int) -> None:
    assert get_model(name).num_parameters == parameters
    assert get_model(name).parameter_bytes == 2 * parameters


def test_llama_8b_arithmetic() -> None:
    # A layer: q, o 4096 x 4096; k, v 4096 x 1024; three MLP matrices 4096 x 14336.
    layer = 2 * 16_777_216 + 2 * 4_194_304 + 3 * 58_720_256
    assert LLAMA.linear_parameters == 32 * layer == 6_979_321_856
    assert LLAMA.linear_flops_per_token == 13_958_643_712
    assert LLAMA.lm_head_flops_per_row == 2 * 525_336_576
    assert LLAMA.weight_bytes_per_step == pytest.approx(15.01e9, rel=1e-3)
    assert LLAMA.kv_bytes_per_token == 131_072
    # A cold prefill of n tokens has n^2 / 2 pairs: 262 144 n^2 FLOPs,
    # as many as the linear part at n = 53 k.
    assert LLAMA.attention_flops_per_pair == 2 * 262_144
    assert LLAMA.linear_flops_per_token / 262_144 == pytest.approx(53e3, rel=0.01)


def test_kv_bytes_of_the_other_models() -> None:
    assert MODELS["llama-3.1-70b"].kv_bytes_per_token == 2 * 80 * 1024 * 2
    assert MODELS["qwen2.5-7b"].kv_bytes_per_token == 2 * 28 * 512 * 2
    assert MODELS["smollm2-135m"].kv_bytes_per_token == 2 * 30 * 192 * 2


def test_fp32_doubles_every_byte_and_no_flop() -> None:
    fp32 = replace(LLAMA, bytes_per_parameter=4)
    assert fp32.kv_bytes_per_token == 2 * LLAMA.kv_bytes_per_token
    assert fp32.weight_bytes_per_step == 2 * LLAMA.weight_bytes_per_step
    assert fp32.linear_flops_per_token == LLAMA.linear_flops_per_token


@pytest.mark.parametrize(("card", "tokens"), [("h100", 0.40e6), ("h200", 0.82e6)])
def test_kv_pool_of_llama_8b(card: str, tokens: float) -> None:
    assert kv_pool_tokens(LLAMA, get_accelerator(card)) == pytest.approx(tokens, rel=0.02)


def test_kv_pool_is_the_free_memory_over_a_tokens_kv() -> None:
    card = Accelerator("toy", 1.0, 1.0, memory_bytes=40e9)
    # 0.5 * 40e9 - 1e9 - 16_060_522_496 = 2_939_477_504 bytes; / 131 072 = 22 426.4.
    assert kv_pool_tokens(LLAMA, card, utilisation=0.5, reserve_bytes=1e9) == 22_426


def test_tensor_parallelism_splits_weights_and_kv() -> None:
    # A card: 0.9 * 80e9 - 3e9 - 141.107e9 / 4 = 33.723e9 bytes; 327 680 / 4 bytes a token.
    tokens = kv_pool_tokens(MODELS["llama-3.1-70b"], HARDWARE["h100"], tp=4)
    assert tokens == pytest.approx(33.723e9 / 81_920, rel=1e-4)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"llama-3.1-70b does not fit h100 at tp=2.*70\.55 GB a card"
    ):
        kv_pool_tokens(MODELS["llama-3.1-70b"], HARDWARE["h100"], tp=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tp": 3}, "tp=3: a divisor of the 8 KV heads of llama-3.1-8b"),
        ({"tp": 0}, "tp=0"),
        ({"utilisation": 1.5}, "utilisation=1.5"),
        ({"utilisation": float("nan")}, "utilisation=nan"),
        ({"reserve_bytes": -1.0}, r"reserve_bytes=-1\.0"),
    ],
)
def test_kv_pool_names_the_bad_argument(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kv_pool_tokens(LLAMA, HARDWARE["h100"], **arguments)


def test_unknown_names_list_what_exists_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"b200.*: one of a10g, a100-80, h100, h200, l40s, cpu"):
        get_accelerator("b200")
    with pytest.raises(ValueError, match=r"gpt.*: one of llama-3.1-8b, .*smollm2-135m"):
        get_model("gpt")
    with pytest.raises(ValueError, match="engine='trt' on h100: one of vllm, sglang is needed"):
        get_efficiency("h100", "trt")
    with pytest.raises(ValueError, match="accelerator='b200': one of a10g"):
        get_efficiency("b200", "vllm")


def test_every_card_has_constants_and_only_fits_claim_to_be_fits() -> None:
    assert {card for card, _ in EFFICIENCY} == set(HARDWARE)
    for key, efficiency in EFFICIENCY.items():
        assert efficiency.source.startswith("fitted to") == (key in FITTED)
        assert efficiency.source.startswith("assumption, not fitted") == (key not in FITTED)


def test_tables_are_read_only() -> None:
    for table in (HARDWARE, MODELS, EFFICIENCY):
        with pytest.raises(TypeError):
            table["new"] = None  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        LLAMA.num_layers = 1  # type: ignore[misc]


def test_table_keys_are_the_names() -> None:
    assert [accelerator.name for accelerator in HARDWARE.values()] == list(HARDWARE)
    assert [model.name for model in MODELS.values()] == list(MODELS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(LLAMA, num_layers=0), "num_layers=0: a positive number"),
        (lambda: replace(LLAMA, bytes_per_parameter=-2), "bytes_per_parameter=-2"),
        (lambda: replace(LLAMA, num_kv_heads=5), "num_kv_heads=5: a divisor of num_heads=32"),
        (lambda: Accelerator("x", 0, 1, 1), "peak_flops=0"),
        (lambda: Accelerator("x", 1, float("nan"), 1), "memory_bandwidth=nan"),
        (lambda: Accelerator("x", 1, 1, 1, link_bandwidth=-1), "link_bandwidth=-1: at least 0"),
        (lambda: Efficiency(0, 0, 1.1, 1, 1, ""), r"mfu=1\.1: a share of peak in \(0, 1\]"),
        (lambda: Efficiency(0, 0, 1, 1, 0, ""), "bandwidth=0"),
        (lambda: Efficiency(-1e-3, 0, 1, 1, 1, ""), r"step_overhead=-0\.001"),
    ],
)
def test_impossible_hardware_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_every_dimension_of_a_model_is_checked() -> None:
    names = [name for name, kind in ModelShape.__annotations__.items() if kind == "int"]
    assert len(names) == 8
    for name in names:
        with pytest.raises(ValueError, match=f"{name}=0"):
            replace(LLAMA, **{name: 0})  # type: ignore[arg-type]
