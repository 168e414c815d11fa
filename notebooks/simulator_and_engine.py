# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Simulator against engine
#
# > *Nice curves. Why should I believe that a real model would have done the same?*
#
# There are two questions in this. Does the simulator *decide* what the engine decides: the same
# batches, hits, evictions and preemptions? And does it *predict* the engine's times? The first has
# a yes or no. The second has an error, which should stand beside what the engine itself differs by
# from run to run.

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["retina"]
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import testbed
from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.core.records import ADDED_COLUMNS, MEASURED_COLUMNS, RunRecord, added_requests
from testbed.metrics.fidelity import served_figures
from testbed.metrics.stored import read_record
from testbed.policies import registry
from testbed.reports.style import PALETTE, STYLE, TEXT_WIDTH
from testbed.sim import simulate
from testbed.sim.fitted import fit_latency

# %% [markdown]
# ## Three runs of the engine
#
# Sixty requests arrive at 80 a second, faster than a tiny Llama with random weights serves them
# here, under `lpm` and in a pool so small that pages are evicted and sequences preempted: once to
# fit step times to, and twice with other requests, to be predicted. Where torch is installed
# (`.venv-engine`), this cell runs the engine. Otherwise it takes three runs that lie beside this
# notebook, and says on which machine they were recorded.

# %%
SEEDS = {"fitted": 0, "served": 1, "again": 1}
has_torch = importlib.util.find_spec("torch") is not None
runs = Path(tempfile.mkdtemp(prefix="engine-")) if has_torch else Path("recorded")


def testbed_command(arguments: str) -> None:
    """Print the command and what it prints; CalledProcessError if it fails."""
    print("testbed", arguments)
    command = [sys.executable, "-m", "testbed", *arguments.split()]
    print(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if has_torch:
    for name, seed in SEEDS.items():
        testbed_command(f"validate --requests 60 --rate 80 --seed {seed} --output {runs}/{name}")

results = testbed.load(runs)
for name, manifest in results.manifests.items():
    print(
        f"{name}: {manifest['model']} on {manifest['hardware']}, "
        f"torch {manifest['versions']['torch']}, {manifest['wall_seconds']:.1f} s"
        f"{'' if has_torch else ', recorded earlier'}"
    )

# %% [markdown]
# ## The same decisions?
#
# The replay gives the simulator the requests, the moments at which they joined the queue, and how
# long each step took, and lets it decide everything anew.

# %%
for name in SEEDS:
    testbed_command(f"validate {runs}/{name}")

# %% [markdown]
# ## The times?
#
# Now the simulator is told nothing of the other runs but their requests. Step times come from a
# latency model that is fitted to the steps of the first run; `testbed calibrate` does so with a
# load made for the purpose.


# %%
def columns(name: str, table: str, schema: dict) -> dict:
    """A table of an engine's run as arrays."""
    frame = getattr(testbed.load(runs / name), table)
    return {column: frame[column].to_numpy() for column in schema}


latency = fit_latency(columns("fitted", "measured", MEASURED_COLUMNS))
requests = added_requests(columns("served", "added", ADDED_COLUMNS))
config = results.configs["served"]
predicted = simulate(
    sorted(requests, key=lambda request: request.arrival),
    cache=CacheConfig(**config["cache"]),
    scheduler=SchedulerConfig(**config["batching"]),
    policy=lambda: registry.scheduling(config["scheduler"]),
    eviction=lambda: registry.eviction(config["eviction"]),
    routing=registry.routing("round_robin"),
    latency=latency,
)
measured = read_record(runs / "served")
figures = pd.DataFrame(
    {
        "engine": served_figures(measured),
        "engine again": served_figures(read_record(runs / "again")),
        "simulator": served_figures(predicted),
    }
)
figures["engine's difference"] = figures["engine again"] / figures["engine"] - 1
figures["simulator's error"] = figures["simulator"] / figures["engine"] - 1
relative = dict.fromkeys(["engine's difference", "simulator's error"], "{:+.1%}".format)
print(figures.to_string(float_format="{:.4g}".format, formatters=relative))

# %% [markdown]
# An error that is no larger than the difference between two runs of the engine cannot be told from
# what else the machine did meanwhile. Two runs show little of that: `testbed validate
# --free-running` repeats each load five times, below, at and past saturation and with a cache that
# thrashes.
#
# ## The figure
#
# Under `lpm` who goes first depends on what happens to be cached, so a few milliseconds change
# which request is the unlucky one: not even two runs of the engine agree on that. What a
# prediction can get right is how many are unlucky, and by how much.


# %%
def ttft_s(record: RunRecord) -> np.ndarray:
    """float64[requests], sorted."""
    return np.sort(record.requests["first_token_s"] - record.requests["arrival_s"])


def e2e_s(record: RunRecord) -> np.ndarray:
    """float64[requests], in order of the requests' ids."""
    order = np.argsort(record.requests["request"])
    return (record.requests["finish_s"] - record.requests["arrival_s"])[order]


with matplotlib.rc_context(dict(STYLE)):
    figure = Figure(figsize=(TEXT_WIDTH, 2.5), layout="constrained")
    distribution, each = figure.subplots(1, 2)
    for label, record, colour in (
        ("engine", measured, "black"),
        ("simulator", predicted, PALETTE[0]),
    ):
        times = ttft_s(record)
        share = np.arange(1, len(times) + 1) / len(times)
        distribution.step(times, share, where="post", color=colour, label=label)
    distribution.set_xlabel("Time to first token (s)")
    distribution.set_ylabel("Requests")
    distribution.legend()
    for label, record, colour in (
        ("engine again", read_record(runs / "again"), PALETTE[7]),
        ("simulator", predicted, PALETTE[0]),
    ):
        each.scatter(e2e_s(measured), e2e_s(record), s=8, color=colour, label=label)
    each.axline((0, 0), slope=1, color="black", linewidth=0.6)
    each.set_xlabel("End-to-end latency of a request, engine (s)")
    each.set_ylabel("The same request (s)")
    each.legend()
figure

# %% [markdown]
# ## Next
#
# - `.venv-engine/bin/testbed calibrate`, then `.venv-engine/bin/testbed validate --free-running`.
# - `.venv-engine/bin/python -m experiments.benchmarks fidelity` holds the errors against bars.
# - The site's page *How far to trust it* says which bars are met and which are not.
