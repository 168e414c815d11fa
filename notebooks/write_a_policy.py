# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Write a policy and race it
#
# > *Longest prefix first is fast on average, but our unlucky users wait for ever. Can I have the
# > hits without the stragglers?*
#
# `lpm` serves whoever has the longest cached prefix. A request about an unpopular document has
# none, and popular ones keep arriving: it waits until the queue is empty. A deadline for patience
# should help. Does it, and what does it cost?

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["retina"]
import sys
import tempfile

import matplotlib
import numpy as np
from matplotlib.figure import Figure

import testbed
from testbed.metrics.intervals import mean_interval
from testbed.reports.style import STYLE, TEXT_WIDTH, looks

folder = tempfile.mkdtemp(prefix="policy-")

# %% [markdown]
# ## The policy
#
# A scheduling policy is one class with one method. It yields sequences in the order in which it
# wants them admitted, and hears after each whether it fitted. The parameters of `__init__` become
# options that a sweep can vary.

# %%
# %%writefile {folder}/my_policies.py
from testbed.policies import Proposals, SchedulerView, SchedulingPolicy, SequenceView


class PatientLpm(SchedulingPolicy):
    """Longest cached prefix first, but who waited `patience` seconds goes first, by arrival."""

    def __init__(self, patience: float = 5.0) -> None:
        if not patience > 0:
            raise ValueError(f"patience={patience}: a time above 0 is needed, in seconds")
        self.patience = patience

    def candidates(self, view: SchedulerView) -> Proposals:
        def rank(sequence: SequenceView) -> tuple[bool, int, int]:
            patient = view.now - sequence.arrival < self.patience
            return patient, -sequence.num_matched_tokens if patient else 0, sequence.index

        for sequence in sorted(view.waiting, key=rank):
            if not (yield sequence):
                return


# %% [markdown]
# ## Is it sound?
#
# The conformance kit serves workloads that are known to break policies: tight memory, ties,
# preemptions, many clients. It checks that nobody starves, that the same requests are decided
# alike whatever they are called and in whatever process, and that a pass does not grow too slow
# with the queue.

# %%
# !cd {folder} && {sys.executable} -m testbed policy check my_policies:PatientLpm 2>&1 | cat

# %% [markdown]
# ## The race
#
# A class is named by its path, beside policies that ship. For a while 26 questions a second
# arrive, more than the simulated H100 can answer: a queue builds, and its order begins to matter.

# %%
# !cd .. && PYTHONPATH={folder} {sys.executable} -m experiments.run -m \
#     workload=rag workload.num_requests=500 arrivals=poisson arrivals.rate=26 cache.tokens=60000 \
#     scheduler=fcfs,lpm,my_policies.PatientLpm seed=0,1,2 output={folder}/runs 2>&1 | cat

# %%
results = testbed.load(f"{folder}/runs")
summary = results.summary.assign(
    scheduler=results.summary["scheduler"].replace({"my_policies.PatientLpm": "patient_lpm"})
)
metrics = ["hit_rate", "ttft_p50_s", "ttft_p99_s"]
summary.groupby("scheduler")[metrics].agg(
    lambda seeds: "{:.3f} ± {:.3f}".format(*mean_interval(seeds))
)

# %% [markdown]
# ## The figure
#
# The share of requests that waited longer than so many seconds for their first token. The further
# left a curve ends, the sooner the last straggler was served.

# %%
requests = results.requests.merge(summary[["run", "scheduler"]], on="run")
requests["ttft_s"] = requests["first_token_s"] - requests["arrival_s"]

with matplotlib.rc_context(dict(STYLE)):
    figure = Figure(figsize=(TEXT_WIDTH, 2.6), layout="constrained")
    axes = figure.subplots()
    schedulers = sorted(set(requests["scheduler"]))
    for scheduler, look in looks(schedulers).items():
        waits = np.sort(requests.loc[requests["scheduler"] == scheduler, "ttft_s"])
        share = 1 - np.arange(1, len(waits) + 1) / len(waits)
        axes.step(waits, share, where="post", color=look.colour, label=scheduler)
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("Time to first token (s)")
    axes.set_ylabel("Requests that waited longer")
    axes.grid()
    axes.legend()
figure

# %% [markdown]
# ## Next
#
# - Sweep the option: `scheduler=my_policies.PatientLpm scheduler.patience=1,2,5,10,20`.
# - `testbed policy new NAME --kind scheduling` writes a package with a test, which makes the
#   policy an option by name; `--kind eviction` and `--kind routing` begin the other two.
# - `docs/policies.md` goes from FCFS to deficit longest prefix match, and lists what the views
#   show.
