"""The Triton kernels under the engine, in Triton's interpreter: a few steps of a tiny model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.engine.kv_pool import KVPool
from testbed.engine.loop import serve
from testbed.engine.sampling import Sampler
from testbed.policies import registry
from tests.engine.building import Models, PoisoningExecutor, reference, some_requests
from tests.kernels.conftest import OBSTACLE

pytestmark = [
    pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE)),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-mistral"])
def test_tokens_are_transformers_tokens(models: Models, family: str) -> None:
    from testbed.engine.triton_attention import TritonAttention

    model = models[family]
    requests = [replace(r, max_new_tokens=3) for r in some_requests(3, alone=12)]
    expected = {r.id: reference(model, r)[0].tolist() for r in requests}
    cache = CacheConfig(num_pages=30, page_size=16)
    pool = KVPool(model, cache.num_pages, cache.page_size)
    pool.poison()
    run = serve(
        requests,
        executor=PoisoningExecutor(model, pool, TritonAttention(model, pool), Sampler()),
        cache=cache,
        # Chunks, so that steps hold decode rows and prefill rows side by side.
        scheduler=SchedulerConfig(chunk_size=64),
        policy=registry.scheduling("fcfs"),
        eviction=registry.eviction("lru"),
    )
    assert {id: tokens.tolist() for id, tokens in run.outputs.items()} == expected
    mixed = (run.measured["decode_rows"] > 0) & (run.measured["prefill_rows"] > 0)
    assert mixed.any()
