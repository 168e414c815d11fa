"""Settings that all tests share."""

from __future__ import annotations

import os

import matplotlib
from hypothesis import settings

matplotlib.use("Agg")
# Triton reads it when it is imported, which transformers may do.
os.environ.setdefault("TRITON_INTERPRET", "1")
# Derandomised, so that a failure seen once is seen again; no deadline, so that no test asserts a
# duration.
settings.register_profile("testbed", deadline=None, derandomize=True)
settings.load_profile("testbed")
