"""What the measurements of a card say: a table beside the targets, and figures.

    python -m experiments.gpu.report results/CARD

reads the JSON of whatever parts have run. Figures need matplotlib, the table needs nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

HEADLINE = ("llama-8b", 64, 4096)
"""(model, decode rows, context) of the step that is held to its memory floor."""


class Line(NamedTuple):
    """One target: what was measured, what was wanted, and whether more is better."""

    name: str
    measured: float | None
    target: float
    at_least: bool
    unit: str

    def __str__(self) -> str:
        wanted = f"{'at least' if self.at_least else 'at most'} {self.target:{self.unit}}"
        if self.measured is None:
            return f"{self.name:66} not measured    {wanted}"
        reached = (self.measured >= self.target) == self.at_least or self.measured == self.target
        verdict = "reached" if reached else "MISSED"
        return f"{self.name:66} {self.measured:12{self.unit}}    {wanted}: {verdict}"


def read_parts(folder: Path) -> dict[str, Any]:
    """The records of the parts, by name."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.json"))
    }


def targets(parts: dict[str, Any]) -> list[Line]:
    """Every target, measured or not."""
    kernels = parts.get("kernels", {})
    decode = kernels.get("decode") or [{}]
    prefill = kernels.get("prefill") or [{}]
    lines = [
        Line(
            "paged decode, batch 64 x 4096: share of the copy bandwidth",
            decode[0].get("share_of_copy"), 0.75, True, ".1%",
        ),
        Line(
            "prefill of 8192 tokens: share of the matmul rate",
            prefill[0].get("share_of_matmul"), 0.50, True, ".1%",
        ),
    ]  # fmt: skip
    model, rows, context = HEADLINE
    ratio = None
    for row in parts.get("steps", {}).get("models", {}).get(model, {}).get("rows", []):
        if (row["rows"], row["context"], row["chunk"]) == (rows, context, 0):
            ratio = row["graph_seconds"] / row["memory_floor_s"]
    name = f"captured decode step of {model}, {rows} x {context}: over its memory floor"
    lines.append(Line(name, ratio, 1.3, False, ".2f"))
    ratio = parts.get("throughput", {}).get("ratio")
    name = "engine's tokens/s over transformers' continuous batching"
    lines.append(Line(name, ratio, 1.0, True, ".2f"))
    for part in ("correctness", "tokens"):
        wrong = parts.get(part, {}).get("wrong")
        lines.append(Line(f"{part}: wrong results", wrong, 0, False, ".0f"))
    return lines


def draw(parts: dict[str, Any], folder: Path) -> list[Path]:
    """Figures of what there is, as PDF and PNG."""
    from matplotlib.figure import Figure

    figures: dict[str, Figure] = {}
    steps = parts.get("steps", {}).get("models", {})
    if steps:
        figure = figures["steps"] = Figure(figsize=(5 * len(steps), 4), layout="constrained")
        for place, (model, record) in enumerate(steps.items()):
            axes = figure.add_subplot(1, len(steps), place + 1)
            decodes = [row for row in record["rows"] if not row["chunk"]]
            for name, key in (
                ("op by op", "seconds"), ("captured", "graph_seconds"), ("floor", "memory_floor_s")
            ):  # fmt: skip
                tokens = [row["rows"] * row["context"] for row in decodes]
                axes.scatter(tokens, [row[key] * 1e3 for row in decodes], s=12, label=name)
            axes.set(xscale="log", yscale="log", title=model)
            axes.set(xlabel="KV tokens of the batch", ylabel="decode step, ms")
            axes.legend()
    rows = parts.get("sharing", {}).get("rows", [])
    if rows:
        figure = figures["sharing"] = Figure(figsize=(5, 4), layout="constrained")
        axes = figure.add_subplot()
        saved = [row["saved_bytes"] / 1e6 for row in rows]
        axes.scatter(saved, [row["apart_s"] / row["once_s"] for row in rows], s=12)
        axes.axhline(1, linewidth=0.8)
        axes.axvline(parts["sharing"]["engine_shares_from_bytes"] / 1e6, linewidth=0.8, ls="--")
        axes.set(xscale="log", xlabel="spared MB a layer", ylabel="speed-up of reading once")
    written = []
    for name, figure in figures.items():
        for suffix in ("pdf", "png"):
            written.append(folder / f"{name}.{suffix}")
            figure.savefig(written[-1])
    return written


def report(folder: Path) -> list[str]:
    """Lines to print; figures are written into the folder."""
    parts = read_parts(folder)
    if not parts:
        return [f"{folder}: no results in it"]
    lines = []
    if any(part.get("smoke") for part in parts.values()):
        lines.append("A smoke run: its code ran, its figures mean nothing and meet no target.")
    else:
        lines += [str(line) for line in targets(parts)]
    for name, part in parts.items():
        if "failed" in part:
            lines.append(f"{name}: FAILED: {part['failed']}")
        elif part.get("finished") is False:
            lines.append(f"{name}: cut short after {part['seconds']:.0f} s")
    if find_spec("matplotlib") is None:
        lines.append("No figures: matplotlib is not installed.")
    else:
        lines += [f"wrote {path}" for path in draw(parts, folder)]
    return lines


def main(arguments: list[str]) -> int:
    """Print the table of a folder, write its figures."""
    parser = argparse.ArgumentParser(prog="experiments.gpu.report")
    parser.add_argument("folder", type=Path)
    print("\n".join(report(parser.parse_args(arguments).folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
