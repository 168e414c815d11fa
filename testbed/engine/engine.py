"""A model with everything around it that serves workloads, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.cost import CostModel
from testbed.core.policy import EvictionPolicy, SchedulingPolicy
from testbed.core.request import Request
from testbed.core.source import RequestSource
from testbed.engine.attention import TorchAttention
from testbed.engine.executor import ModelExecutor
from testbed.engine.host_memory import keep_freed_memory
from testbed.engine.kv_pool import KVPool
from testbed.engine.loop import EngineRun, RunFailed, serve
from testbed.engine.model import Model
from testbed.engine.sampling import Sampler


@dataclass(frozen=True)
class Engine:
    """Serves each workload on a fresh pool, with the attention that fits the model's device.

    On a CUDA device decode steps run as graphs, which are captured before the first step.
    share_prefixes: let rows of a step read the pages that they share once.
    """

    model: Model
    share_prefixes: bool = True

    @property
    def hardware(self) -> str | None:
        """The accelerator's name; None on a CPU."""
        device = self.model.device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else None

    def run(
        self,
        requests: Iterable[Request] | RequestSource,
        *,
        cache: CacheConfig,
        scheduler: SchedulerConfig,
        policy: SchedulingPolicy,
        eviction: EvictionPolicy,
        cost: CostModel | None = None,
        skip_idle: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> EngineRun:
        """Serve the requests; see testbed.engine.loop.serve.

        cache: its num_pages may be pages_that_fit(model, page_size). cost: what policies that weigh
        costs see, such as CostModel(latency.step_seconds) of a calibrated latency model; without
        one a second stands for each computed token.
        MemoryError if the pool does not fit the device.
        """
        pool = KVPool(self.model, cache.num_pages, cache.page_size)
        try:
            run = serve(
                requests,
                executor=self._executor(pool),
                cache=cache,
                scheduler=scheduler,
                policy=policy,
                eviction=eviction,
                cost=cost,
                skip_idle=skip_idle,
                progress=progress,
            )
        except RunFailed as failure:
            failure.partial = self._described(failure.partial, cache)
            raise
        return self._described(run, cache)

    def _executor(self, pool: KVPool) -> ModelExecutor:
        if self.model.device.type != "cuda":
            keep_freed_memory()
            in_torch = TorchAttention(pool, share_prefixes=self.share_prefixes)
            return ModelExecutor(self.model, pool, in_torch, Sampler())
        # Importing Triton takes a driver or an interpreter.
        from testbed.engine.cuda_graphs import DecodeGraphs
        from testbed.engine.triton_attention import TritonAttention

        attention = TritonAttention(self.model, pool, share_prefixes=self.share_prefixes)
        graphs = DecodeGraphs(self.model, attention)
        # Now, so that no step carries the time that it takes.
        graphs.capture()
        return ModelExecutor(self.model, pool, attention, Sampler(), graphs)

    def _described(self, run: EngineRun, cache: CacheConfig) -> EngineRun:
        """The loop knows no bytes."""
        counters = {
            **run.record.counters,
            "bytes_per_page": self.model.kv_bytes_per_token * cache.page_size,
        }
        return run._replace(record=run.record._replace(counters=counters))
