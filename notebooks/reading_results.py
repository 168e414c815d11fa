# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Reading results with pandas
#
# > *I have a folder of runs, and the number that I care about is in none of your tables.*
#
# A run is a folder of Parquet files, and `testbed.load` reads one run or a whole sweep into
# frames. The number here: how many answers began within two seconds, by cache size and scheduler.

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["retina"]
import sys
import tempfile

import matplotlib
from matplotlib.figure import Figure

import testbed
from testbed.metrics.intervals import mean_interval
from testbed.metrics.paired import judge
from testbed.reports.style import COLUMN_WIDTH, STYLE, looks

folder = tempfile.mkdtemp(prefix="results-")

# %% [markdown]
# Any sweep will do; put the folder of yours in its place. This one is 18 small runs.

# %%
# !cd .. && {sys.executable} -m experiments.run -m workload=rag workload.num_requests=300 \
#     arrivals=poisson arrivals.rate=24 scheduler=fcfs,lpm cache.tokens=40000,80000,160000 \
#     seed=0,1,2 output={folder} 2>&1 | cat

# %% [markdown]
# ## Four frames
#
# `summary` has a row a run: its seed, the options that were set (`results.overrides` lists them),
# and all values of `summary.json`.

# %%
results = testbed.load(folder)
results.summary[["run", "scheduler", "cache.tokens", "seed", "hit_rate", "ttft_p99_s"]].head()

# %% [markdown]
# `requests` has a row a request. What its columns mean, and in what unit, is in one module:

# %%
from testbed.core.records import REQUEST_COLUMNS

for name in ("arrival_s", "first_token_s", "prompt_tokens", "cached_tokens"):
    print(f"{name:<16}{REQUEST_COLUMNS[name].doc}")
results.requests[["run", "arrival_s", "first_token_s", "prompt_tokens", "cached_tokens"]].head()

# %% [markdown]
# `steps` has a row a step, `clients` a row for each client of a run; `decisions` is there where a
# run was told to record them (`record.decisions=true`). `config` has every option of every run.

# %%
results.steps.groupby("run")[["waiting", "running", "evicted_pages"]].max().head()

# %% [markdown]
# ## A metric of one's own
#
# First one value a run, from its requests; then a mean with its interval over the seeds of each
# setting. Averaging over all requests of all seeds at once would hide how much the seeds differ.

# %%
requests = results.requests
requests["in_time"] = requests["first_token_s"] - requests["arrival_s"] <= 2.0
in_time = requests.groupby("run")["in_time"].mean().rename("in_time")
runs = results.summary.merge(in_time, on="run")

settings = runs.groupby(["scheduler", "cache.tokens"])["in_time"]
table = settings.apply(lambda seeds: mean_interval(seeds)._asdict()).unstack()
table

# %% [markdown]
# ## A difference
#
# Both policies serve the same requests with the same seed: pair them, and what the seeds do to
# both falls out of the noise. The verdict is that of `testbed compare`.

# %%
by_seed = runs.pivot(index=["cache.tokens", "seed"], columns="scheduler", values="in_time")
for size, pairs in by_seed.groupby("cache.tokens"):
    change = judge(pairs["fcfs"], pairs["lpm"], better="higher")
    print(
        f"{size:>7,} tokens: lpm less fcfs {change.difference.mean:+.3f} "
        f"± {change.difference.half_width:.3f}, {change.verdict}"
    )

# %% [markdown]
# ## The figure
#
# The style module has the sizes of two-column papers, and a colour for each policy that is the
# same in every figure.

# %%
with matplotlib.rc_context(dict(STYLE)):
    figure = Figure(figsize=(COLUMN_WIDTH, 2.4), layout="constrained")
    axes = figure.subplots()
    schedulers = sorted(set(runs["scheduler"]))
    for name, look in looks(schedulers).items():
        line = table.loc[name]
        axes.errorbar(
            line.index / 1000,
            line["mean"],
            yerr=line["half_width"],
            color=look.colour,
            marker=look.marker,
            label=name,
            elinewidth=0.8,
        )
    axes.set_ylim(0, 1)
    axes.set_xlabel("KV cache (1,000 tokens)")
    axes.set_ylabel("Answers that begin within 2 s")
    axes.grid(axis="y")
    axes.legend(loc="lower right")
figure

# %% [markdown]
# ## Next
#
# - `testbed.reports.style.publish(figure, table, "STEM")` writes PDF, PNG and CSV for a paper.
# - `testbed report FOLDER` shows the usual numbers of any sweep on one page.
