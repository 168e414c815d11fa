# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Fairness
#
# > *One customer sends twice as many requests as the other, and both complain. Who gets what, and
# > what would a fair server cost us?*
#
# Two clients share one simulated A10G, each behind a prompt of its own, and each asks for more
# than half of what it can do. First come, first served gives whoever asks more, more. A fair
# scheduler gives both the same; one that knows nothing of the cache pays for that with hits.

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["retina"]
import sys
import tempfile

import testbed
from testbed.metrics.intervals import mean_interval
from testbed.reports.fairness import fairness_figure, fairness_table

folder = tempfile.mkdtemp(prefix="fairness-")

# %% [markdown]
# `experiment=figure_fairness` is a file of `experiments/conf/experiment`, VTC's overload
# experiment with a cache; here it serves a minute of it under five schedulers. `vtc` counts what
# each client was given and serves the one that had least; `dlpm` takes the longest cached prefix
# among those that have credit left; `locality_fair` bounds the gap in total tokens and looks for
# hits within it.

# %%
# !cd .. && {sys.executable} -m experiments.run -m experiment=figure_fairness workload.duration=60 \
#     scheduler=fcfs,lpm,vtc,dlpm,locality_fair seed=0,1,2 output={folder} 2>&1 | cat

# %% [markdown]
# ## What it costs
#
# The *service gap* is the largest difference in service to two clients while both were waiting. It
# has two units: *total* tokens, where a prompt token counts whether it was cached or not, and
# *extended* tokens, where cached ones are free. A policy is fair in the unit that it counts.

# %%
results = testbed.load(folder)
metrics = ["hit_rate", "output_tokens_per_s", "max_service_gap", "max_extended_service_gap"]
results.summary.groupby("scheduler")[metrics].agg(
    lambda seeds: "{:,.4g} ± {:,.2g}".format(*mean_interval(seeds))
)

# %% [markdown]
# What each client met. In the end both are answered in full; who asked for less should not have
# waited for who asked for more.

# %%
clients = results.clients.merge(results.summary[["run", "scheduler"]], on="run")
clients.pivot_table(
    index="scheduler", columns="client", values=["ttft_p50_s", "ttft_p99_s", "hit_rate"]
).round(2)

# %% [markdown]
# ## The figure
#
# Above, service of each client over time; below, the largest gap so far. Dashed lines are what the
# papers promise, each in its own unit.

# %%
fairness_figure(fairness_table(results))

# %% [markdown]
# ## Next
#
# - `docs/fairness.md` says what is counted, and where each policy misses its aim.
# - `python -m experiments.figures frontier` draws hit rate and throughput against the gap.
# - Give clients weights (`testbed.workloads.Client(weight=...)`), or hour-long traces:
#   `workload=mooncake workload.clients=8`.
