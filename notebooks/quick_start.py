# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Quick start
#
# > *We answer questions about documents, and everybody asks at once. Would it help to serve first
# > what is already in the cache?*
#
# Prefix caching keeps the keys and values of prompts that were computed, so that the next prompt
# that begins alike need not compute them again. What is still there when a request's turn comes
# depends on whose turn came before. So the question is one about scheduling, and the simulator
# answers it in seconds: 3 schedulers, 3 seeds, one simulated H100.

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["retina"]
import sys
import tempfile

import testbed
from testbed.reports.comparison import compare
from testbed.reports.figures import policy_figure
from testbed.reports.table import comparison_table

folder = tempfile.mkdtemp(prefix="quick-start-")

# %% [markdown]
# A sweep is one command. `workload=rag` asks about two of 116 documents in each prompt, some far
# more popular than others; `cache.tokens` makes the cache small enough to fill.

# %%
# !cd .. && {sys.executable} -m experiments.run -m workload=rag workload.num_requests=300 \
#     cache.tokens=60000 scheduler=fcfs,lpm,dfs_weight seed=0,1,2 output={folder} 2>&1 | cat

# %% [markdown]
# `fcfs` is first come, first served; `lpm` admits the request with the longest cached prefix
# first, as SGLang does; `dfs_weight` walks the radix tree depth first, heaviest branch first.
#
# `testbed.load` reads all runs below a folder into pandas frames. One row of `summary` is one run.

# %%
results = testbed.load(folder)
columns = ["scheduler", "seed", "hit_rate", "ttft_p50_s", "output_tokens_per_s"]
results.summary[columns].sort_values(["scheduler", "seed"])

# %% [markdown]
# One configuration with all its seeds makes one row of a comparison; ± is a 95 % confidence
# interval of the mean. The second table is what the others gain over `fcfs`, seed by seed: all
# three serve the same requests, so the difference is surer than the two means are.

# %%
comparison = compare(results, by=["scheduler"])
print(comparison_table(comparison, baseline="fcfs"))

# %% [markdown]
# The hit rate has two bounds. The *sharing bound* is what no order and no cache size can exceed;
# the *clairvoyant bound* is what an eviction policy that knows the future reaches in the order
# that the scheduler chose. A policy far below both leaves something on the table; one close to
# them does not.
#
# Where an interval of the second table holds 0, three seeds do not tell the two apart: say so, or
# run more of them.

# %%
policy_figure(comparison)

# %% [markdown]
# ## Next
#
# - `python -m experiments.run --help` lists the workloads, policies and hardware to put in.
# - `testbed report FOLDER` writes all this, and the timeline of each run, as one HTML page.
# - [Write a policy and race it](write_a_policy.ipynb) puts a scheduler of your own into the table.
