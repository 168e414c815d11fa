from __future__ import annotations

import tracemalloc
from hashlib import sha256
from pathlib import Path

from experiments.identity import digests

NOTHING_FOREIGN = {
    group: {"_target_": "testbed.policies.registry.find"}
    for group in ("scheduler", "eviction", "routing")
}


def test_a_file_is_hashed_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    content = bytes(range(256)) * (1 << 15)
    path.write_bytes(content)
    tracemalloc.start()
    found = digests({"workload": {"path": str(path)}, "latency": None, **NOTHING_FOREIGN})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == {"workload": sha256(content).hexdigest()[:16]}
    assert peak < len(content) / 4
