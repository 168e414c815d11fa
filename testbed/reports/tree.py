"""The radix tree as an icicle: a prompt reads from left to right, what it shares is drawn once."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from testbed.reports.style import STYLE, TEXT_WIDTH

COLOURS = "viridis_r"
MAX_OUTLINED = 400
"""With more nodes their outlines would be all that is seen."""


def icicle_table(snapshots: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The nodes of every snapshot under its title, with `top` and `height`, in leaves.

    snapshots: by title, tables of testbed.metrics.tree.TREE_COLUMNS.
    """
    tables = [
        nodes.assign(moment=title, top=top, height=height)
        for title, nodes in snapshots.items()
        for top, height in [layout(nodes)]
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[["moment", *(name for name in table if name != "moment")]]


def layout(nodes: pd.DataFrame) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where each node's band begins and how high it is, in leaves; children divide their parent's.

    Nodes are parents first and depth first, as tree_table gives them.
    """
    parent = nodes["parent"].tolist()
    height = (nodes["children"].to_numpy() == 0).astype(np.int64)
    for place in range(len(parent) - 1, -1, -1):
        if parent[place] >= 0:
            height[parent[place]] += height[place]
    top = np.zeros(len(parent), dtype=np.int64)
    below = {-1: 0}
    for place, above in enumerate(parent):
        top[place] = below[place] = below[above]
        below[above] += int(height[place])
    return top, height


def icicle_figure(table: pd.DataFrame, steps: Mapping[str, int]) -> Figure:
    """A column a moment; above coloured by hits, below by steps since the last access.

    table: by icicle_table. steps: by title, the step of the moment. Nodes that a running sequence
    locks are outlined.
    """
    titles = list(steps)
    ages = table["moment"].map(steps) - table["last_access"]
    values = {
        "hits": (table["hits"], LogNorm(1, max(2, int(table["hits"].max())))),
        "steps since last use": (ages, Normalize(0, max(1, int(ages.max())))),
    }
    with matplotlib.rc_context(dict(STYLE)):
        figure = Figure(figsize=(TEXT_WIDTH, 4.2), layout="constrained")
        panels = figure.subplots(len(values), len(titles), sharex=True, squeeze=False)
        for row, (name, (value, norm)) in zip(panels, values.items(), strict=True):
            shades = ScalarMappable(norm, COLOURS if name == "hits" else "viridis")
            for axes, title in zip(row, titles, strict=True):
                _bands(axes, table, value, shades, title)
            bar = figure.colorbar(shades, ax=list(row), pad=0.01, aspect=12)
            bar.set_label(name.capitalize())
            if name == "hits":
                bar.ax.yaxis.set_major_formatter("{x:g}")
                bar.ax.minorticks_off()
            bar.outline.set_linewidth(0.5)
        for axes, title in zip(panels[0], titles, strict=True):
            axes.set_title(title)
        for axes in panels[-1]:
            axes.set_xlabel("Prefix (tokens)")
        for row in panels:
            row[0].set_ylabel("Leaves of the tree")
    return figure


def _bands(
    axes: Axes, table: pd.DataFrame, value: pd.Series, shades: ScalarMappable, title: str
) -> None:
    here = (table["moment"] == title).to_numpy()
    nodes = table[here]
    left, right = nodes["start"], nodes["start"] + nodes["tokens"]
    top, bottom = nodes["top"], nodes["top"] + nodes["height"]
    corners = ((left, top), (right, top), (right, bottom), (left, bottom))
    shapes = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)
    outline = 0.2 if len(nodes) <= MAX_OUTLINED else 0.0
    axes.add_collection(
        PolyCollection(
            list(shapes),
            facecolors=shades.to_rgba(value[here].to_numpy()),
            edgecolors="white",
            linewidths=outline,
        )
    )
    locked = (nodes["locks"] > 0).to_numpy()
    axes.add_collection(
        PolyCollection(list(shapes[locked]), facecolors="none", edgecolors="black", linewidths=0.4)
    )
    axes.set_xlim(0, float((table["start"] + table["tokens"]).max()))
    axes.set_ylim(float(bottom.max()) if len(nodes) else 1.0, 0)
