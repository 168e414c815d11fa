"""Driver: kvcache-simulator over a Mooncake trace, hit tokens of the second half of the requests.

Arguments (JSON): trace, block_size (tokens), blocks (cache sizes), policies (lru, optimal).
"""

from __future__ import annotations

import json
import sys
from typing import Any

from kvcache_sim.plan import build_execution_plan
from kvcache_sim.policies import simulate_policy
from kvcache_sim.trace import parse_trace_file


def main(trace: str, block_size: int, blocks: list[int], policies: list[str]) -> dict[str, Any]:
    """By policy and size: hit tokens; and the prompt tokens of the second half."""
    parsed = parse_trace_file(trace, block_size=block_size)
    plan = build_execution_plan(parsed, warmup_fraction=0.5)
    found = {
        policy: {str(size): simulate_policy(plan, policy, size) for size in blocks}
        for policy in policies
    }
    return {
        "hits": {p: {s: one.hitTokens for s, one in by.items()} for p, by in found.items()},
        "tokens": found[policies[0]][str(blocks[0])].totalTokens,
    }


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
