"""Settings that all tests share."""

from __future__ import annotations

import matplotlib
from hypothesis import settings

matplotlib.use("Agg")
# Derandomised, so that a failure seen once is seen again; no deadline, so that no test asserts a
# duration.
settings.register_profile("testbed", deadline=None, derandomize=True)
settings.load_profile("testbed")
