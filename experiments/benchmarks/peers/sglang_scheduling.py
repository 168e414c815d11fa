"""Driver: SGLang's SchedulePolicy.calc_priority over a warm tree and a long waiting queue.

Arguments (JSON): trace, page_size, num_tokens, warm (requests served before), waiting (queue
lengths), passes. Prints the median milliseconds of a pass by queue length, in two columns: as
shipped, where above 128 waiting requests LPM turns into doing nothing, and with that limit lifted.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from array import array
from itertools import islice
from types import SimpleNamespace
from typing import Any

from mooncake import prompts
from sglang_cpu import Tree, schedule_policy

UNLIMITED = 1 << 60


class WaitingRequest:
    """The fields of SGLang's Req that an ordering pass uses; lighter than the real one."""

    extra_key = None
    cache_salt = None
    session = None

    def __init__(self, rid: int, prompt: array[int]) -> None:
        self.rid = rid
        self.origin_input_ids = prompt
        self.output_ids = array("q")

    def _compute_max_prefix_len(self, length: int) -> int:
        return length - 1


def median_pass_ms(tree: Tree, queue: list[WaitingRequest], limit: int, passes: int) -> float:
    """The median over passes that each find the queue shuffled, after one that warms up."""
    schedule_policy.WAITING_QUEUE_PREFIX_MATCH_MAX = limit
    policy = schedule_policy.SchedulePolicy("lpm", tree.cache, False, False, False)
    shuffler = random.Random(0)
    milliseconds = []
    for _ in range(passes + 1):
        waiting = list(queue)
        shuffler.shuffle(waiting)
        start = time.perf_counter()
        policy.calc_priority(waiting)
        milliseconds.append(1e3 * (time.perf_counter() - start))
    return statistics.median(milliseconds[1:])


def main(
    trace: str, page_size: int, num_tokens: int, warm: int, waiting: list[int], passes: int
) -> dict[str, Any]:
    """Fill the tree with the first `warm` requests; those that follow them wait."""
    schedule_policy.get_disagg = lambda: SimpleNamespace(disaggregation_mode="null")
    schedule_policy.get_memory = lambda: SimpleNamespace(radix_eviction_policy="lru")
    tree = Tree(page_size, num_tokens)
    source = prompts(trace)
    for prompt in islice(source, warm):
        tree.serve(prompt, len(prompt) - 1, time.perf_counter)
    queue = [WaitingRequest(i, prompt) for i, prompt in enumerate(islice(source, max(waiting)))]
    limit = schedule_policy.WAITING_QUEUE_PREFIX_MATCH_MAX
    return {
        str(length): {
            "shipped_ms": median_pass_ms(tree, queue[:length], limit, passes),
            "lifted_ms": median_pass_ms(tree, queue[:length], UNLIMITED, passes),
        }
        for length in waiting
    }


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
