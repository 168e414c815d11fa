# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Prompt ordering on your own log
#
# > *All our prompts begin with the same page of instructions. Why does the cache hit almost
# > nothing?*
#
# A prefix cache finds what is equal from the first token on. One value that changes early, a clock
# or a name, makes everything behind it new. This notebook reads a log of chats, finds such places,
# says what each costs, and what would be left to win by a larger cache or a better order of
# service.

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["retina"]
import json
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from testbed.advisor.advice import advise
from testbed.advisor.forecast import Setting
from testbed.advisor.page import text_page
from testbed.advisor.verdict import Thresholds
from testbed.reports.ordering import RATES, gap_figure
from testbed.workloads.formats.reader import read_records
from testbed.workloads.tokenize import load_tokenizer

folder = Path(tempfile.mkdtemp(prefix="ordering-"))

# %% [markdown]
# ## A log
#
# **Put your own file here**: chats in OpenAI's format, ShareGPT, plain prompts, token ids or a
# Mooncake trace (`docs/workloads.md` lists them), and leave `mended` out until you have one.

# %%
logs = {"as logged": folder / "chats.jsonl", "mended": folder / "mended.jsonl"}

# %% [markdown]
# So that the notebook runs anywhere, it makes them up: 400 questions to the assistant of a shop,
# each about one of twelve articles. The clock stands in front of all rules, and the tools come in
# another order each time, as they do when a program lists a set. The second log has neither fault.

# %%
TOPICS = ("orders", "returns", "invoices", "delivery", "warranty", "gift cards")
PROMISES = ("refund", "date", "discount", "call", "replacement")
RULES = " ".join(
    f"Answer questions about {topic} from the article, and never promise a {promise}."
    for topic in TOPICS
    for promise in PROMISES
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"find_{thing}",
            "description": f"Look up the {thing} that the customer asks about, by its number, and "
            "return its state, its dates and what was paid for it.",
            "parameters": {"type": "object", "properties": {"number": {"type": "string"}}},
        },
    }
    for thing in ("order", "invoice", "parcel", "voucher")
]
ARTICLES = [
    " ".join(f"Paragraph {k} of article {a} explains step {k * a + 3} of it." for k in range(30))
    for a in range(12)
]


def write_log(path: Path, has_faults: bool) -> None:
    """The same questions, with and without the faults."""
    rng = np.random.default_rng(7)
    popularity = 1 / np.arange(1, len(ARTICLES) + 1)
    with path.open("w") as lines:
        for i in range(400):
            article = ARTICLES[rng.choice(len(ARTICLES), p=popularity / popularity.sum())]
            order = rng.permutation(len(TOOLS)) if has_faults else range(len(TOOLS))
            minute, second = divmod(7 * i, 60)
            clock = f"It is 10:{minute:02}:{second:02} UTC."
            system = f"{clock} {RULES}" if has_faults else RULES
            question = f"{article} Question {i}: what about this?"
            chat = {
                "tools": [TOOLS[k] for k in order],
                "messages": [
                    {"role": "system", "content": system},
                    {"role": "user", "content": question if has_faults else f"{question} {clock}"},
                ],
                "response": "Your order is on its way. " * 5,
            }
            lines.write(json.dumps(chat) + "\n")


write_log(logs["as logged"], has_faults=True)
write_log(logs["mended"], has_faults=False)

# %% [markdown]
# ## Advice
#
# `testbed advise FILE` prints this page. *Lost* is what is computed anew because of this fault
# alone, counted on the log with everything else mended, so that losses do not add up.

# %%
setting = Setting(cache_tokens=20_000, concurrency=16)
advice = {
    name: advise(read_records(path), load_tokenizer(None), setting, Thresholds())
    for name, path in logs.items()
}
print(text_page("Advice on the log", advice["as logged"].sections))

# %% [markdown]
# ## The figure
#
# Three gaps lie between the hit rate that a log reaches and the one that its mended prompts could
# reach at best: the *template gap* is lost in the prompts, and no cache and no scheduler wins it
# back; the *capacity gap* is lost to the cache's size; the *scheduling gap* to the order of
# service. The page above promised a hit rate after the mends; the second row is what the mended
# log reaches.

# %%
rows = [
    {
        "workload": "chat log",
        "order": name,
        "cache.tokens": setting.cache_tokens,
        "scheduler": "fcfs",
        "measured_half_width": one.rates.now.half_width,
        **{rate: getattr(one.rates.gaps, rate) for rate in RATES},
        **one.rates.gaps.by_lever,
    }
    for name, one in advice.items()
]
gap_figure(pd.DataFrame(rows))

# %% [markdown]
# ## Next
#
# - Whether the model answers as well with the clock at the end is yours to check.
# - `testbed miss-ratio FILE` prints the hit rate at every cache size.
# - `docs/ordering.md` has the formulas, and `python -m experiments.figures order_gaps` the figure
#   for six templates and three seeds.
