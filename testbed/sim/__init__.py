"""The discrete-event backend: serve a workload on simulated hardware, and record everything."""

from testbed.sim.hardware import (
    HARDWARE,
    MODELS,
    get_accelerator,
    get_efficiency,
    get_model,
    kv_pool_tokens,
)
from testbed.sim.latency import FixedLatency, LatencyModel, Roofline
from testbed.sim.world import simulate

__all__ = [
    "HARDWARE",
    "MODELS",
    "FixedLatency",
    "LatencyModel",
    "Roofline",
    "get_accelerator",
    "get_efficiency",
    "get_model",
    "kv_pool_tokens",
    "simulate",
]
