"""Step times against a published table, hand-computed steps, and themselves run by run."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.batch import Batch, BatchShape
from testbed.sim.hardware import (
    EFFICIENCY,
    HARDWARE,
    MODELS,
    Accelerator,
    Efficiency,
    ModelShape,
    get_efficiency,
)
from testbed.sim.latency import FixedLatency, LatencyExecutor, LatencyModel, Roofline

LLAMA = MODELS["llama-3.1-8b"]
PERFECT = Efficiency(0.0, 0.0, 1.0, 1.0, 1.0, "all of the peaks")

# Llama-3.1-8B, tp 1, ms: kernel times summed by aiconfigurator-core (Apache-2.0). Columns: cold
# prefills of 512, 2 048, 8 192; 512 tokens after 8 192 and after 32 768; decodes of 1 x 1 024,
# 32 x 1 024, 128 x 1 024, 256 x 1 024, 64 x 4 096, 256 x 4 096 (rows x context).
STEP_MS: dict[tuple[str, str], list[float]] = {
    ("h100", "vllm"): [12.0, 43.5, 199.7, 15.0, 24.9, 6.18, 8.32, 12.8, 19.6, 17.9, 52.0],
    ("h100", "sglang"): [12.6, 46.1, 205.7, 15.9, 26.5, 6.61, 8.16, 12.9, 19.6, 18.0, 52.4],
    ("h200", "vllm"): [11.5, 43.4, 198.9, 14.6, 24.5, 4.86, 6.32, 9.94, 15.3, 13.6, 38.1],
    ("h200", "sglang"): [13.8, 44.7, 206.1, 16.9, 28.2, 4.87, 5.98, 9.76, 16.1, 12.8, 38.6],
    ("a100-80", "vllm"): [36.0, 125.2, 557, 47.5, 85.1, 11.9, 15.6, 24.8, 43.7, 33.5, 105.7],
    ("a100-80", "sglang"): [36.9, 134.2, 584, 47.3, 79.8, 11.6, 16.5, 29.9, 51.7, 39.5, 131.2],
}


def prefill(tokens: int, context: int = 0) -> BatchShape:
    return BatchShape(
        prefill_rows=1,
        prefill_tokens=tokens,
        prefill_pairs=tokens * context + tokens * (tokens + 1) // 2,
        prefill_context=context + tokens,
        logit_rows=1,
    )


def decode(rows: int, context: int) -> BatchShape:
    return BatchShape(decode_rows=rows, decode_context=rows * context, logit_rows=rows)


COLUMNS = [
    *(prefill(512), prefill(2048), prefill(8192), prefill(512, 8192), prefill(512, 32768)),
    *(decode(1, 1024), decode(32, 1024), decode(128, 1024), decode(256, 1024)),
    *(decode(64, 4096), decode(256, 4096)),
]


def model_ratios(model: LatencyModel, table_ms: list[float]) -> npt.NDArray[np.float64]:
    seconds = np.array([model.step_seconds(shape) for shape in COLUMNS])
    return seconds / (np.array(table_ms) * 1e-3)


# Mean absolute errors in percent that the fits are to stay within: prefill, chunk, decode.
@pytest.mark.parametrize(
    ("card", "engine", "bounds"),
    [
        ("h100", "vllm", (5.9, 2.0, 3.0)),
        ("h100", "sglang", (4.9, 2.0, 2.0)),
        ("h200", "vllm", (6.4, 3.0, 3.0)),
        ("h200", "sglang", (6.9, 3.3, 2.0)),
        ("a100-80", "vllm", (7.1, 5.0, 2.9)),
        ("a100-80", "sglang", (7.1, 3.9, 2.9)),
    ],
)
def test_fits_reproduce_the_table(
    card: str, engine: str, bounds: tuple[float, float, float]
) -> None:
    model = Roofline(LLAMA, HARDWARE[card], get_efficiency(card, engine))
    errors = 100 * np.abs(model_ratios(model, STEP_MS[card, engine]) - 1)
    for group, bound in zip((errors[:3], errors[3:5], errors[5:]), bounds, strict=True):
        assert group.mean() <= bound


@pytest.mark.parametrize(("card", "engine"), STEP_MS)
def test_datasheet_peaks_alone_are_a_bound_too_low_by_a_quarter(card: str, engine: str) -> None:
    model = Roofline(LLAMA, HARDWARE[card], PERFECT)
    ratios = model_ratios(model, STEP_MS[card, engine])
    assert ratios.max() < 1
    assert ratios.mean() < 0.75


@pytest.mark.parametrize(("card", "ms"), [("h100", 4.48), ("h200", 3.13), ("a100-80", 7.36)])
def test_decode_floor_is_the_weights_over_the_bandwidth(card: str, ms: float) -> None:
    model = Roofline(LLAMA, HARDWARE[card], PERFECT)
    assert model.step_seconds(decode(1, 1)) * 1e3 == pytest.approx(ms, abs=0.006)


def test_prefill_of_2048_is_30_ms_at_peak() -> None:
    seconds = Roofline(LLAMA, HARDWARE["h100"], PERFECT).step_seconds(prefill(2048))
    assert seconds * 1e3 == pytest.approx(30.0, rel=0.005)


TOY = ModelShape("toy", 1, 4, 2, 1, 2, 8, 10)
TOY_CARD = Accelerator("toy", peak_flops=1000.0, memory_bandwidth=100.0, memory_bytes=1e6)
TOY_EFFICIENCY = Efficiency(1.0, 0.5, 0.5, 0.25, 0.8, "by hand")


def test_a_mixed_step_by_hand() -> None:
    # 144 linear weights, 40 in lm_head: F = 288 * 5 + 80 * 3 = 1 680, 3.36 s at 500/s;
    # W = 368, 4.6 s at 80/s; (3.36^4 + 4.6^4)^(1/4) = 4.897279.
    # A = 16 * (18 + 10) = 448, 1.792 s at 250/s; KV = 8 * (7 + 10) = 136, 1.7 s at 80/s.
    # 1 + 3 * 0.5 + 4.897279 + 1.792.
    shape = BatchShape(
        decode_rows=2,
        decode_context=10,
        prefill_rows=1,
        prefill_tokens=3,
        prefill_pairs=18,
        prefill_context=7,
        logit_rows=3,
    )
    seconds = Roofline(TOY, TOY_CARD, TOY_EFFICIENCY).step_seconds(shape)
    assert seconds == pytest.approx(9.189279, abs=1e-6)


def test_decode_steps_by_hand() -> None:
    # F = 288 * 2 + 80 * 2 = 736, 1.472 s; 4.6 * (1 + 0.32^4)^(1/4) = 4.612011; KV = 8 bytes a
    # token, 0.1 s, above A = 16 FLOPs, 0.064 s. 1 + 2 * 0.5 + 4.612011 + 1.0; then two tokens
    # more a step.
    run = Roofline(TOY, TOY_CARD, TOY_EFFICIENCY).decode_run(decode(2, 5), 3)
    assert run == pytest.approx([7.612011, 7.812011, 8.012011], abs=1e-6)


def test_pages_that_decode_rows_share_are_read_once_where_attention_can() -> None:
    # As above, but of 20 tokens of KV 12 are read before: 8 bytes for each of 8, 0.8 s at 80/s,
    # below A = 16 FLOPs for each of 20, 1.28 s at 250/s; a step later 24 and 12 tokens, 1.536 s.
    shape = decode(4, 5)._replace(decode_shared=12)
    sharing = Roofline(TOY, TOY_CARD, TOY_EFFICIENCY, shared_prefix_decode=True)
    reading = Roofline(TOY, TOY_CARD, TOY_EFFICIENCY).decode_run(shape, 2)
    assert sharing.decode_run(shape, 2) - reading == pytest.approx([1.28 - 2.0, 1.536 - 2.4])
    # With 5 of the 20 shared, 1.5 s of reading is the longer again.
    little = shape._replace(decode_shared=5)
    saved = sharing.step_seconds(little) - reading[0]
    assert saved == pytest.approx(-0.5)


def test_lm_head_is_paid_for_sampled_rows_only() -> None:
    model = Roofline(LLAMA, HARDWARE["h100"], get_efficiency("h100", "vllm"))
    unfinished = prefill(512)._replace(logit_rows=0)
    assert model.step_seconds(unfinished) < model.step_seconds(prefill(512))


def test_tensor_parallel_cards_act_as_one_larger_card_plus_all_reduces() -> None:
    model, card = MODELS["llama-3.1-70b"], HARDWARE["h100"]
    efficiency = get_efficiency("h100", "vllm")
    larger = replace(
        card, peak_flops=4 * card.peak_flops, memory_bandwidth=4 * card.memory_bandwidth
    )
    shape = prefill(1000, 500)
    extra = Roofline(model, card, efficiency, tp=4).step_seconds(shape) - Roofline(
        model, larger, efficiency
    ).step_seconds(shape)
    # 160 all-reduces of 1 000 x 8 192 x 2 bytes: 10 us + 1.5 * 16.384e6 / 450e9 s each.
    assert extra == pytest.approx(160 * (10e-6 + 54.6133e-6), rel=1e-5)


def test_tensor_parallelism_must_be_possible() -> None:
    with pytest.raises(ValueError, match="tp=3: a divisor of the 8 KV heads"):
        Roofline(LLAMA, HARDWARE["h100"], PERFECT, tp=3)
    with pytest.raises(ValueError, match="tp=2: cpu has no link to a peer; 1 is needed"):
        Roofline(LLAMA, HARDWARE["cpu"], PERFECT, tp=2)


shares = st.floats(0.05, 1.0)
efficiencies = st.builds(
    Efficiency, st.floats(0, 0.01), st.floats(0, 1e-4), shares, shares, shares, st.just("drawn")
)


@given(
    model=st.sampled_from(list(MODELS.values())),
    accelerator=st.sampled_from(list(HARDWARE.values())),
    efficiency=efficiencies | st.sampled_from(list(EFFICIENCY.values())),
    split=st.booleans(),
    rows=st.integers(1, 4096),
    context=st.integers(0, 10**8),
    shared=st.floats(0, 1),
    shares=st.booleans(),
    steps=st.integers(0, 40),
)
def test_roofline_runs_equal_steps_bit_for_bit(
    model: ModelShape,
    accelerator: Accelerator,
    efficiency: Efficiency,
    split: bool,
    rows: int,
    context: int,
    shared: float,
    shares: bool,
    steps: int,
) -> None:
    tp = model.num_kv_heads if split and accelerator.link_bandwidth else 1
    roofline = Roofline(model, accelerator, efficiency, tp, shares)
    first = BatchShape(
        decode_rows=rows,
        decode_context=rows + context,
        logit_rows=rows,
        decode_shared=int(shared * context),
    )
    assert_run_equals_steps(roofline, first, steps)


@given(
    seconds_per_token=st.floats(0, 10),
    minimum=st.floats(0, 10),
    rows=st.integers(1, 300),
    steps=st.integers(0, 20),
)
def test_fixed_runs_equal_steps_bit_for_bit(
    seconds_per_token: float, minimum: float, rows: int, steps: int
) -> None:
    assert_run_equals_steps(FixedLatency(seconds_per_token, minimum), decode(rows, 7), steps)


def assert_run_equals_steps(model: LatencyModel, first: BatchShape, steps: int) -> None:
    run = model.decode_run(first, steps)
    one_by_one = [
        model.step_seconds(
            first._replace(decode_context=first.decode_context + i * first.decode_rows)
        )
        for i in range(steps)
    ]
    assert run.dtype == np.float64
    assert run.tolist() == one_by_one


@given(small=st.tuples(*[st.integers(0, 10**6)] * 7), extra=st.tuples(*[st.integers(0, 10**6)] * 7))
def test_more_work_never_takes_less_time(small: tuple[int, ...], extra: tuple[int, ...]) -> None:
    model = Roofline(LLAMA, HARDWARE["h200"], get_efficiency("h200", "vllm"))
    large = BatchShape(*(a + b for a, b in zip(small, extra, strict=True)))
    less, more = model.step_seconds(BatchShape(*small)), model.step_seconds(large)
    assert 0 < less <= more < math.inf


@pytest.mark.parametrize("model", [Roofline(TOY, TOY_CARD, PERFECT), FixedLatency()])
@pytest.mark.parametrize("shape", [prefill(4), BatchShape()])
def test_a_decode_run_needs_decodes_alone(model: LatencyModel, shape: BatchShape) -> None:
    with pytest.raises(ValueError, match="needs decode rows and no prefill rows"):
        model.decode_run(shape, 3)


def test_fixed_latency_is_unit_time() -> None:
    # A prompt of 12 with a hit of h tokens takes max(1, 12 - h).
    unit = FixedLatency(seconds_per_token=1.0, minimum=1.0)
    assert unit.step_seconds(prefill(12)) == 12
    assert unit.step_seconds(prefill(5, context=7)) == 5
    assert unit.step_seconds(prefill(0, context=12)) == 1
    assert unit.step_seconds(decode(3, 100)) == 3
    assert FixedLatency(0.5).step_seconds(decode(3, 100)) == 1.5


@pytest.mark.parametrize("name", ["seconds_per_token", "minimum"])
def test_fixed_latency_names_the_bad_field(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=-1.0: at least 0 is needed"):
        FixedLatency(**{name: -1.0})


def test_executor_asks_the_model_and_samples_nothing() -> None:
    batch = Batch(step=1, decodes=[], prefills=[], shape=prefill(12))
    result = LatencyExecutor(FixedLatency(0.25)).execute(batch)
    assert result.seconds == 3.0
    assert result.tokens is None
