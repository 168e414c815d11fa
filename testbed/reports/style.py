"""How figures look: one style, one look a policy, the same bytes every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from testbed.whole_file import whole_file

COLUMN_WIDTH = 3.33
TEXT_WIDTH = 7.0
"""Inches: one column, and both, of a two-column paper."""

STYLE: Mapping[Any, Any] = MappingProxyType(
    {
        "font.family": "DejaVu Sans",
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.labelsize": 8,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "legend.fontsize": 7,
        "legend.title_fontsize": 7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "lines.markeredgewidth": 0,
        "xtick.major.width": 0.6,
        "xtick.minor.width": 0.4,
        "ytick.major.size": 0,
        "ytick.minor.size": 0,
        "axes.axisbelow": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.5,
        "lines.linewidth": 1.0,
        "lines.markersize": 3.5,
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
MARKERS = ("o", "s", "^", "D", "v", "X", "p", "<")


class Look(NamedTuple):
    """A colour of PALETTE and one of MARKERS."""

    colour: str
    marker: str


# Yellow is left out: it is too faint for a line.
_COLUMNS = (*PALETTE[:6], *PALETTE[7:])
_POLICIES = (
    "lpm sjf dfs_weight dlpm dfs vtc fcfs locality_fair",
    "k_lpm srpt preble mdrr random lcf routing_key justitia",
    "lof hrrn priority token_bucket rpm vtc_oracle sjf_uncached srpt_oracle",
    "preemptive_priority",
    "lfu fifo sieve gdsf s3_fifo slru lru belady",
    "slru_decay filo tail_lru pgdsf ttl marconi mru look_ahead",
    "reuse_probability pin",
    "cache_aware least_loaded prefix_hash preble_e2 precise_prefix d2lpm round_robin dynamo",
    "session_affinity power_of_two",
)
"""Schedulers, evictors, routers; their colours: blue, orange, green, pink, sky, vermilion, grey,
black."""
POLICY_LOOKS: Mapping[str, Look] = MappingProxyType(
    {
        name: Look(_COLUMNS[column], MARKERS[(row + column) % len(MARKERS)])
        for row, names in enumerate(_POLICIES)
        for column, name in enumerate(names.split())
    }
)
"""A policy keeps its look from figure to figure; a marker never comes twice with one colour."""


def looks(labels: Sequence[str]) -> dict[str, Look]:
    """A look for each label: its policy's own if it starts with a known one, else a free one."""
    known = {label: POLICY_LOOKS.get(label.split(" ")[0]) for label in labels}
    taken = {look.colour for look in known.values() if look is not None}
    free = [colour for colour in _COLUMNS if colour not in taken] or list(_COLUMNS)
    chosen: dict[str, Look] = {}
    others = 0
    for label, look in known.items():
        if look is None:
            look = Look(free[others % len(free)], MARKERS[others % len(MARKERS)])
            others += 1
        chosen[label] = look
    return chosen


def colours(labels: Sequence[str]) -> dict[str, str]:
    """The colours of `looks`."""
    return {label: look.colour for label, look in looks(labels).items()}


def publish(figure: Figure, table: pd.DataFrame, stem: str | Path) -> list[Path]:
    """Write the figure as STEM.pdf and STEM.png, and what it shows as STEM.csv."""
    text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return [*save(figure, stem), write_whole(Path(f"{stem}.csv"), text.encode())]


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
    """Write the content, all of it or nothing; returns the path."""
    with whole_file(path) as stream:
        stream.write(content)
    return path
