"""What a reader must know before believing the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from testbed.metrics.loading import Results, commit_of
from testbed.metrics.paired import judge
from testbed.metrics.results import FAILED
from testbed.reports.changes import JUDGED
from testbed.reports.comparison import Comparison
from testbed.reports.page.words import listed, was_measured
from testbed.reports.table import Metric

SATURATED = 0.1
"""A part of all requests that still waits when the last one arrives: a queue that never drains."""
FEW_BEYOND = 10
"""A percentile with fewer requests beyond it moves with single requests."""
LEADERS = (
    "hit_rate",
    "output_tokens_per_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "max_service_gap",
    "fair_share_distance",
)
"""The metrics whose leads are looked at for noise."""
MAX_NAMED = 4


def cautions(results: Results, comparison: Comparison, folder: Path) -> list[str]:
    """One sentence or two for each thing that limits what the runs can show; none if all is well.

    folder: where the runs were read from; failed runs in it are told.
    """
    rules: tuple[Callable[[], Iterable[str]], ...] = (
        lambda: _failed(folder),
        lambda: _saturated(results),
        lambda: _few_requests(comparison),
        lambda: _few_seeds(comparison),
        lambda: _idle_seeds(comparison),
        lambda: _unequal(comparison),
        lambda: _noise(comparison),
        lambda: _oracles(comparison),
        lambda: _counted(comparison, "refused", "requests were refused, and count in no latency"),
        lambda: _counted(comparison, "skipped_lines", "bad lines of the workload were left out"),
        lambda: _origins(results),
    )
    return [text for rule in rules for text in rule()]


def _failed(folder: Path) -> Iterable[str]:
    failed = sorted(path.parent for path in folder.rglob(FAILED))
    if failed:
        names = _some([path.relative_to(folder).as_posix() for path in failed])
        broke = (
            "1 run broke off and is"
            if len(failed) == 1
            else f"{len(failed)} runs broke off and are"
        )
        yield f"{broke} left out here: {names}."


def _saturated(results: Results) -> Iterable[str]:
    at_once, saturated = [], []
    requests = results.requests
    for run, rows in requests[requests["status"] != "refused"].groupby("run", sort=False):
        last = rows["arrival_s"].max()
        if last == rows["arrival_s"].min() and len(rows) > 1:
            at_once.append(str(run))
            continue
        waiting = ((rows["admitted_s"] > last) | (rows["admitted_s"] < 0)).mean()
        if waiting > SATURATED:
            saturated.append((float(waiting), str(run)))
    total = len(results.folders)
    if saturated:
        worst = max(saturated)[0]
        yield (
            f"{_part(len(saturated), total)} saturated: when the last request arrived, up to "
            f"{worst:.0%} of all requests still waited to be admitted. The load was beyond what "
            "was served, so waiting times grow with the length of the run, and throughput is the "
            "system's limit rather than the load's."
        )
    if at_once:
        yield (
            f"In {_part(len(at_once), total, verb='')} all requests were there from the start: "
            "waiting times measure how a backlog is worked off, not how a stream is served."
        )


def _few_requests(comparison: Comparison) -> Iterable[str]:
    fewest = min(
        (
            float(group["finished"].min())
            for group in comparison.groups.values()
            if "finished" in group
        ),
        default=math.inf,
    )
    if fewest < 100 * FEW_BEYOND:
        yield (
            f"A run finished as few as {fewest:,.0f} requests: its 99th percentile rests on the "
            f"slowest {max(round(fewest / 100), 1)}."
        )


def _few_seeds(comparison: Comparison) -> Iterable[str]:
    fewest = min(len(comparison.samples(label)) for label in comparison.groups)
    if fewest == 1:
        yield (
            "At least one setting rests on one seed only: it has no interval, and nothing here "
            "tells its differences from noise."
        )
    elif fewest == 2:
        yield (
            "At least one setting rests on two seeds only: their interval is 12.7 standard "
            "errors wide to either side. A third seed makes it 4.3."
        )


def _idle_seeds(comparison: Comparison) -> Iterable[str]:
    """Seeds that do not do what one takes them to do."""
    return (f"{note[0].upper()}{note[1:]}." for note in comparison.seed_notes())


def _unequal(comparison: Comparison) -> Iterable[str]:
    for labels in comparison.rivals():
        seeds = {label: tuple(comparison.groups[label].index) for label in labels}
        if len(set(seeds.values())) > 1:
            texts = [f"{x} ({', '.join(map(str, seeds[x]))})" for x in labels[:MAX_NAMED]]
            yield f"Settings were run with different seeds, and are not paired: {listed(texts)}."


def _noise(comparison: Comparison) -> Iterable[str]:
    near = [
        text
        for labels in comparison.rivals()
        for metric in JUDGED
        if metric.column in LEADERS
        for text in _near_the_best(comparison, labels, metric)
    ]
    if near:
        yield f"Within noise of the best, by paired 95 % intervals: {'; '.join(near)}."


def _near_the_best(comparison: Comparison, labels: list[str], metric: Metric) -> Iterable[str]:
    assert metric.best is not None
    groups = {x: comparison.groups[x] for x in labels if metric.column in comparison.groups[x]}
    means = {label: comparison.interval(label, metric.column).mean for label in groups}
    known = {label: mean for label, mean in means.items() if not math.isnan(mean)}
    if len(known) < 2:
        return
    target = metric.best(list(known.values()))
    best = next(label for label, mean in known.items() if mean == target)
    near = [x for x in known if x != best and _within_noise(comparison, best, x, metric)]
    if near:
        yield f"in {metric.name} {_some(near)} (best: {best})"


def _within_noise(comparison: Comparison, best: str, other: str, metric: Metric) -> bool:
    seeds = comparison.samples(best, other)
    change = judge(
        *(comparison.groups[label].loc[seeds, metric.column] for label in (best, other)),
        better="higher" if metric.best is max else "lower",
    )
    return change.verdict == "within noise"


def _oracles(comparison: Comparison) -> Iterable[str]:
    if comparison.oracles:
        yield (
            f"Oracles (†): {_some(sorted(comparison.oracles))}. An oracle is told what no real "
            "system knows, and shows what is possible, not what can be built."
        )


def _counted(comparison: Comparison, column: str, what: str) -> Iterable[str]:
    found = {
        label: int(group[column].sum())
        for label, group in comparison.groups.items()
        if column in group and group[column].sum() > 0
    }
    if found:
        texts = [f"{count:,} in {label}" for label, count in found.items()]
        yield f"{sum(found.values()):,} {what}: {_some(texts)}."


def _origins(results: Results) -> Iterable[str]:
    manifests = results.manifests
    commits = set(map(commit_of, manifests.values()))
    if len(commits) > 1:
        yield f"The runs come from different commits: {_some(sorted(commits))}."
    if any(commit.endswith("-dirty") for commit in commits):
        yield (
            "Some runs come from a checkout with uncommitted changes (-dirty): their commit alone "
            "does not bring them back."
        )
    if commits == {"unknown"}:
        yield "The commit of the runs is not known."
    if any(map(was_measured, manifests.values())):
        machines = {str(m.get("hardware")) for m in manifests.values()}
        if len(machines) > 1:
            yield f"The runs were measured on different machines: {_some(sorted(machines))}."
    versions: Mapping[str, set[str]] = {
        name: {str(m.get("versions", {}).get(name)) for m in manifests.values()}
        for name in ("torch", "triton", "transformers", "numpy")
    }
    mixed = [name for name, found in versions.items() if len(found) > 1]
    if mixed:
        yield f"The runs were made with different versions of {listed(mixed)}."


def _some(items: list[str]) -> str:
    rest = [f"{len(items) - MAX_NAMED} more"] if len(items) > MAX_NAMED + 1 else []
    return listed([*(items[:MAX_NAMED] if rest else items), *rest])


def _part(number: int, total: int, verb: str = " was") -> str:
    if number == total:
        return f"{'the run' if total == 1 else 'every run'}{verb}"
    return f"{number} of {total} runs{' were' * bool(verb)}"
