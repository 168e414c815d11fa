"""Where a profiled forward spends its time, by kind of operator; the same for both sides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

PRODUCTS = "matrix products"
ATTENTION = "attention and KV"
REST = "the rest"
PARTS = (PRODUCTS, ATTENTION, REST)
_OPERATORS = {
    PRODUCTS: ("_C::onednn_mm", "mkldnn::_linear_pointwise", "aten::mm", "aten::addmm"),
    ATTENTION: (
        "_C::cpu_attention_with_kv_cache",
        "_C::cpu_attn_reshape_and_cache",
        "testbed::cpu_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::bmm",
        "aten::index_select",
        "aten::index_copy_",
        "aten::index_fill_",
        "aten::lerp",
        "aten::logaddexp",
    ),
}


def milliseconds_by_part(averages: Iterable[Any]) -> dict[str, float]:
    """Sums of the operators' own times. averages: of torch's profiler, one entry an operator."""
    sums = dict.fromkeys(PARTS, 0.0)
    part_of = {name: part for part, names in _OPERATORS.items() for name in names}
    for entry in averages:
        sums[part_of.get(entry.key, REST)] += entry.self_cpu_time_total / 1e3
    return sums
