"""How figures look: one style, one colour a policy, the same bytes every time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib
from matplotlib.figure import Figure

STYLE: Mapping[Any, Any] = MappingProxyType(
    {
        "font.family": "DejaVu Sans",
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.labelsize": 8,
        "xtick.labelsize": 7,
        "ytick.labelsize": 8,
        "legend.fontsize": 7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "xtick.major.width": 0.6,
        "ytick.major.size": 0,
        "axes.axisbelow": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.5,
        "legend.frameon": False,
        # TrueType, which publishers accept, in place of Type 3.
        "pdf.fonttype": 42,
        "ps.fonttype": 42,
        "savefig.dpi": 300,
    }
)

# Okabe and Ito's palette, which tells apart under every common colour blindness.
PALETTE = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#999999",
    "#000000",
)
POLICY_COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "fcfs": "#999999",
        "lpm": "#0072B2",
        "dfs": "#56B4E9",
        "dfs_weight": "#009E73",
        "vtc": "#D55E00",
        "dlpm": "#CC79A7",
        "locality_fair": "#000000",
        "sjf": "#E69F00",
        "hrrn": "#F0E442",
        "lru": "#999999",
        "fifo": "#E69F00",
        "lfu": "#0072B2",
        "round_robin": "#999999",
        "least_loaded": "#E69F00",
    }
)
"""A policy keeps its colour from figure to figure."""


def colours(labels: Sequence[str]) -> dict[str, str]:
    """A colour for each label: its policy's own if it starts with a known one, else a free one."""
    chosen = {label: POLICY_COLOURS.get(label.split(" ")[0], "") for label in labels}
    free = [colour for colour in PALETTE if colour not in chosen.values()] or list(PALETTE)
    others = [label for label, colour in chosen.items() if not colour]
    return chosen | {label: free[i % len(free)] for i, label in enumerate(others)}


def save(figure: Figure, stem: str | Path) -> list[Path]:
    """Write STEM.pdf and STEM.png, each whole or not at all; equal figures give equal bytes."""
    written = []
    for kind, metadata in (("pdf", {"CreationDate": None}), ("png", {"Software": None})):
        content = BytesIO()
        with matplotlib.rc_context(dict(STYLE)):
            figure.savefig(content, format=kind, metadata=metadata)
        written.append(write_whole(Path(f"{stem}.{kind}"), content.getvalue()))
    return written


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file under a temporary name, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)
    return path
