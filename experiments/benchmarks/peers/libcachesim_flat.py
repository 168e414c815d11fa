"""Driver: libCacheSim over the blocks of a Mooncake trace, each id one GET of a size-1 object.

Arguments (JSON): trace, blocks (cache sizes), policies (names of libcachesim classes), limit
(requests; null for all).
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from typing import Any

import libcachesim


def main(
    trace: str, blocks: list[int], policies: list[str], limit: int | None = None
) -> dict[str, Any]:
    """By policy and size: hits of all GETs, and hits of the leading run of each request."""
    with open(trace, encoding="utf-8") as lines:
        rows = [json.loads(line)["hash_ids"] for line in islice(lines, limit)]
    next_uses = _next_uses(rows)
    found = {
        policy: {str(size): _replay(policy, size, rows, next_uses) for size in blocks}
        for policy in policies
    }
    return {"hits": found, "references": sum(map(len, rows))}


def _replay(policy: str, size: int, rows: list[list[int]], next_uses: list[int]) -> list[int]:
    cache = getattr(libcachesim, policy)(cache_size=size)
    request = libcachesim.Request()
    request.obj_size = 1
    place = block_hits = prefix_hits = 0
    for row in rows:
        leading = True
        for block in row:
            request.obj_id = block
            request.clock_time = place
            request.next_access_vtime = next_uses[place]
            hit = cache.get(request)
            block_hits += hit
            leading = leading and hit
            prefix_hits += leading
            place += 1
    return [block_hits, prefix_hits]


def _next_uses(rows: list[list[int]]) -> list[int]:
    """The place of each reference's next one; a huge number if there is none."""
    flat = [block for row in rows for block in row]
    upcoming: dict[int, int] = {}
    next_uses = [0] * len(flat)
    for place in range(len(flat) - 1, -1, -1):
        next_uses[place] = upcoming.get(flat[place], 2**62)
        upcoming[flat[place]] = place
    return next_uses


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
