"""Driver: cache work of SGLang's Rust tree core over a Mooncake trace, one request at a time.

Arguments (JSON): trace, page_size, num_tokens, uncomputed (prompt tokens at the end that are never
matched, 1 in SGLang's scheduler).
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

from mooncake import prompts
from sglang_cpu import Tree

PARTS = ("match", "lock", "read", "evict", "", "insert", "unlock")


def main(trace: str, page_size: int, num_tokens: int, uncomputed: int = 1) -> dict[str, Any]:
    """One pass over the trace. Preparing keys and slots is not timed, nor is garbage collection."""
    gc.disable()
    tree = Tree(page_size, num_tokens)
    seconds = [0.0] * len(PARTS)
    requests = hit_tokens = prompt_tokens = 0
    for prompt in prompts(trace):
        matched, times = tree.serve(prompt, len(prompt) - uncomputed, time.perf_counter)
        for part in range(len(PARTS)):
            seconds[part] += times[part + 1] - times[part]
        requests += 1
        hit_tokens += matched
        prompt_tokens += len(prompt)
    parts = {name: spent for name, spent in zip(PARTS, seconds, strict=True) if name}
    return {
        "seconds": sum(parts.values()),
        "parts": parts,
        "requests": requests,
        "hit_tokens": hit_tokens,
        "prompt_tokens": prompt_tokens,
    }


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
