"""The advisor on a chat log of a million prompts, and beside kvlint on the demo of that."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments.benchmarks.bars import Bar, Benchmark, Reached
from experiments.benchmarks.peer_venv import KVLINT
from testbed.advisor.lint import lint
from testbed.core.request import Request
from testbed.metrics.bounds import clairvoyant_bound
from testbed.metrics.prompt_paths import prompt_paths
from testbed.workloads.formats.chat import chat_record
from testbed.workloads.tokenize import StandInTokenizer

PROMPTS = 1_000_000
TENANTS = 40
SESSIONS_AT_A_TIME = 500
MAX_TURNS = 6
SECONDS = Bar("seconds, one million prompts", "<", 300.0, "s")
MEMORY = Bar("peak memory of the command", "<", 2.0, "GiB")
FOUND = Bar("planted faults found in the million, of 2", "==", 2, "faults")
FLAGGED = Bar("kvlint's findings that are ours too", "==", 1.0)
RATES = Bar("largest difference of a hit rate from kvlint's", "<", 0.1, "points")

RULE_OF = {
    "dynamic_time": "L1",
    "dynamic_id": "L1",
    "user_in_system": "L2",
    "key_order": "L3",
    "whitespace_drift": "L7",
    "block_straddle": "L8",
    "short_prefix": "L9",
    "volatile_fewshot": "L10",
}
"""kvlint's rules and ours."""


def chat_log(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Interleaved sessions of several turns by tenants of unequal shares, with two faults.

    A clock stands in the second line of every system message (L1), and the three tools come in any
    order (L3).
    """
    rng = random.Random(seed)
    words = [
        f"{a}{b}"
        for a in ("re", "un", "pre", "over", "out")
        for b in ("view", "turn", "load", "pay", "book", "plan", "state", "mark", "line", "charge")
    ]

    def text(length: int) -> str:
        return " ".join(rng.choices(words, k=length))

    instructions = [text(60) for _ in range(TENANTS)]
    tools = [
        {"type": "function", "function": {"name": name, "description": text(12)}}
        for name in ("find", "change", "cancel")
    ]
    open_sessions: list[tuple[int, int, list[dict[str, str]]]] = []
    for number in range(count):
        if len(open_sessions) < SESSIONS_AT_A_TIME:
            tenant = min(int(rng.paretovariate(1.0)) - 1, TENANTS - 1)
            place = len(open_sessions)
            open_sessions.append((number, tenant, []))
        else:
            place = rng.randrange(len(open_sessions))
        name, tenant, said = open_sessions[place]
        said.append({"role": "user", "content": text(12)})
        minute, second = divmod(number, 60)
        clock = f"It is {minute // 60 % 24:02d}:{minute % 60:02d}:{second:02d}.\n"
        system = {"role": "system", "content": f"Be brief.\n{clock}{instructions[tenant]}"}
        yield {
            "session_id": str(name),
            "user": f"tenant-{tenant}",
            "tools": rng.sample(tools, len(tools)),
            "messages": [system, *said],
        }
        said.append({"role": "assistant", "content": text(24)})
        if len(said) >= 2 * MAX_TURNS or rng.random() < 0.3:
            open_sessions[place] = open_sessions[-1]
            open_sessions.pop()


def run() -> list[Reached]:
    """The million in a process of its own; then kvlint's demo."""
    return [*_million(), *_beside_kvlint()]


def _million() -> list[Reached]:
    with tempfile.TemporaryDirectory() as folder:
        log, page = Path(folder) / "log.jsonl", Path(folder) / "advice.json"
        with log.open("w", encoding="utf-8") as out:
            for line in chat_log(PROMPTS):
                out.write(json.dumps(line) + "\n")
        print(f"{PROMPTS:,} prompts, {log.stat().st_size / 2**30:.2f} GiB")
        command = [sys.executable, "-m", "testbed", "advise", str(log), "--json", str(page)]
        start = time.perf_counter()
        process = subprocess.Popen(command)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        if status:
            raise RuntimeError(f"{' '.join(command)} exited {os.waitstatus_to_exitcode(status)}")
        advice = json.loads(page.read_text(encoding="utf-8"))
    rules = {finding["rule"] for finding in advice["findings"]}
    return [
        SECONDS.reached(seconds),
        MEMORY.reached(usage.ru_maxrss / 2**20),
        FOUND.reached(len(rules & {"L1", "L3"})),
    ]


def _beside_kvlint() -> list[Reached]:
    """Its demo log and its mended log, by its own tokens: rates in blocks of 16 and of 1."""
    demo = KVLINT.run("kvlint_demo.py", {})
    largest = 0.0
    for which in ("dirty", "fixed"):
        for engine, block in (("vllm", 16), ("sglang", 1)):
            ours, theirs = _hit_rate(demo[which]["tokens"], block), demo[which][engine]
            largest = max(largest, abs(ours - theirs))
            print(f"kvlint's {which} log, blocks of {block}: ours {ours:.1%}, kvlint {theirs:.1%}")
    records = [chat_record(i + 1, line) for i, line in enumerate(demo["dirty"]["log"])]
    found = lint(records, StandInTokenizer(), 16, 0)
    ours_found = {cost.finding.rule for cost in found.costs}
    flagged = {RULE_OF[name] for name in demo["findings"]}
    print(f"kvlint flags {', '.join(demo['findings'])}; we {', '.join(sorted(ours_found))}")
    print(f"our mends, stand-in tokens: {found.now.rate:.1%} to {found.mended.rate:.1%}")
    return [
        FLAGGED.reached(len(flagged & ours_found) / len(flagged)),
        RATES.reached(100 * largest),
    ]


def _hit_rate(prompts: list[list[int]], block: int) -> float:
    """Hits of a cache without limit; kvlint counts a prompt that is cached whole in full."""
    requests = (
        Request(i, np.array(prompt, dtype=np.int32), max_new_tokens=1)
        for i, prompt in enumerate(prompts)
    )
    return clairvoyant_bound(prompt_paths(requests, block, min_computed_tokens=0), None).rate


BENCHMARK = Benchmark(
    "advisor",
    "the advisor on a million prompts: how long, how much memory; and beside kvlint on its demo",
    (SECONDS, MEMORY, FOUND, FLAGGED, RATES),
    run,
)
