"""The advice on a log: one page of sections, from reading to rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from testbed.advisor.fingerprint import Fingerprint, fingerprint
from testbed.advisor.forecast import Forecast, Setting, forecast
from testbed.advisor.lint import Cost, Lint, lint
from testbed.advisor.sample import RunSample
from testbed.advisor.segment_order import order_statements
from testbed.advisor.sketch import BLOCK_BYTES, LogSketch
from testbed.advisor.statements import Section, Statement, as_json, item, say
from testbed.advisor.verdict import (
    Choice,
    Thresholds,
    decision,
    margin,
    rollout,
    warnings,
)
from testbed.workloads.formats.record import Record
from testbed.workloads.tokenize import Tokenizer

MAX_LINTED = 4000
"""Requests of the sample that the rules look at."""
MAX_SHOWN = 8
CHARS_A_REQUEST = 8000
"""Of the prompts of a run, on average; where they are longer, a run has fewer requests."""
MAX_UNSEEN = 0.05
"""Of the text, that the whole log repeats and the sample does not, up to which the sample stands
for the log."""
LEVERS = {
    "template": "the prompts: mend the findings",
    "capacity": "the cache: more memory, a tier behind it, or routing that splits the prefixes",
    "scheduling": "the order of service: a cache-aware scheduler",
}

MIN_LEVER = 0.01
"""Of the hit rate; a gap below it is no lever."""

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Advice:
    """choice: what is recommended. sections: the page. findings: the lint, dearest first."""

    choice: Choice
    sections: list[Section]
    findings: list[Cost]
    sketch: LogSketch
    rates: Forecast | None

    def as_json(self) -> dict[str, Any]:
        """The page as JSON: each sentence with the numbers behind it, and the findings whole."""
        return {
            "choice": self.choice,
            "sections": as_json(self.sections),
            "findings": [_finding_json(cost) for cost in self.findings],
        }


def advise(
    records: Iterable[Record],
    tokenizer: Tokenizer,
    setting: Setting,
    thresholds: Thresholds,
    *,
    min_prefix: int = 0,
    run_requests: int = 1000,
    progress: Progress | None = None,
) -> Advice:
    """Read a log once and advise on it, in bounded memory.

    min_prefix: tokens from which on a prefix is cached, if more than a page (as providers ask).
    run_requests: consecutive requests in a run of the sample, of which up to 16 are kept.
    progress: told a stage's name and how many more requests it has done. ValueError for a log
    without requests.
    """
    if run_requests < 1:
        raise ValueError(f"run_requests={run_requests}: at least 1 is needed")
    sample = RunSample(run_records=run_requests, run_chars=CHARS_A_REQUEST * run_requests)
    sketch = LogSketch()
    for record in records:
        sample.add(record)
        sketch.add(record)
        if progress is not None:
            progress("reading", 1)
    if not sketch.num_requests:
        raise ValueError("the log holds no requests")
    runs = [[record for record in run if record.segments] for run in sample.runs]
    runs = [run for run in runs if run]
    if not runs:
        return Advice("none", [_read(sketch, sample, 0), _lengths_only()], [], sketch, None)
    linted = _first_of_each(runs, MAX_LINTED)
    found = lint(linted, tokenizer, setting.page_size, min_prefix)
    if progress is not None:
        progress("lint", len(linted))
    mended = [found.mend(run) for run in runs]
    seen = fingerprint(runs, tokenizer, setting.page_size)
    seen_mended = fingerprint(mended, tokenizer, setting.page_size) if found.costs else seen
    rates = forecast(
        runs,
        mended,
        tokenizer,
        setting,
        None if progress is None else lambda count: progress("simulating", count),
    )
    choice, decided = decision(sketch.num_requests, seen, seen_mended, rates, thresholds)
    unseen = 0.0 if sample.is_whole else sketch.sharing - rates.bound.rate
    rates_hold = unseen <= MAX_UNSEEN
    if choice != "none" and not rates_hold:
        choice, decided = "measure_both", [_unseen(sketch, rates)]
    sections = [
        _read(sketch, sample, len(linted)),
        Section("Fingerprint", _fingerprint(sketch, seen, rates, thresholds, tokenizer)),
        Section("Findings", _findings(found, sketch)),
    ]
    if ordered := order_statements(found, linted, tokenizer, setting.page_size):
        sections.append(Section("Order of the prompt's parts", ordered))
    sections += [
        Section("Expected hit rate", _rates(rates, setting, bool(found.costs), rates_hold)),
        Section("Go or no-go", decided),
    ]
    if warned := warnings(rates):
        sections.append(Section("Warnings", warned))
    if choice != "none":
        sections.append(Section("Rollout", rollout(choice, rates, len(found.costs), rates_hold)))
    return Advice(choice, sections, found.costs, sketch, rates)


def _first_of_each(runs: Sequence[Sequence[Record]], most: int) -> list[Record]:
    """As many requests from the start of each run."""
    return list(chain.from_iterable(run[: max(most // len(runs), 1)] for run in runs))


def _read(sketch: LogSketch, sample: RunSample, num_linted: int) -> Section:
    said = [
        say(
            "{requests:,} {requests_word} of {clients:,} {clients_word} were read, {size:,} {unit} "
            "of prompts.",
            requests=sketch.num_requests,
            requests_word="request" if sketch.num_requests == 1 else "requests",
            clients=len(sketch.clients),
            clients_word="client" if len(sketch.clients) == 1 else "clients",
            size=sketch.num_bytes or sketch.num_ids,
            unit="bytes" if sketch.num_bytes else "token ids (no text)",
        )
    ]
    runs = sample.runs
    sampled = sum(map(len, runs))
    if not sample.is_whole:
        said.append(
            say(
                "Analysed were {sampled:,} of them: {runs} runs of consecutive requests, evenly "
                "spread. Lint looked at the first {linted:,} of those. Counts of requests and "
                "clients, and the repeated share, are of the whole log.",
                sampled=sampled,
                runs=len(runs),
                linted=num_linted,
            )
        )
    elif 0 < num_linted < sampled:
        said.append(say("Lint looked at the first {linted:,} of them.", linted=num_linted))
    return Section("What was read", said)


def _lengths_only() -> Section:
    text = (
        "No recommendation: the file has lengths alone. What its prompts share was not measured, "
        "and nothing is recommended without that."
    )
    return Section("Go or no-go", [say(text)])


def _unseen(sketch: LogSketch, rates: Forecast) -> Statement:
    return say(
        "Measure both, or give --run-requests more: the whole log repeats {sharing:.1%} of its "
        "text, the runs of the sample {bound:.1%} of theirs. What repeats lies further apart than "
        "a run, so the rates above are too low by an unknown part of the difference.",
        sharing=sketch.sharing,
        bound=rates.bound.rate,
    )


def _fingerprint(
    sketch: LogSketch,
    seen: Fingerprint,
    rates: Forecast,
    thresholds: Thresholds,
    tokenizer: Tokenizer,
) -> list[Statement]:
    bound = rates.bound.rate
    # A log tells its own kind better than its sample does, if it was read for more than that.
    shared = max(bound, sketch.sharing)
    kind = "between prefix-heavy and prefix-light"
    if shared > thresholds.go:
        kind = "prefix-heavy"
    elif shared < thresholds.no_go:
        kind = "prefix-light"
    largest, most = sketch.clients.most_common(1)[0]
    turns = seen.turns.total()
    return [
        say(
            "The traffic is {kind}: {bound:.1%} of the prompt tokens analysed could be found in a "
            "cache without limit; of the whole log, {sharing:.1%} of the bytes repeat the "
            "beginning of an earlier request (in blocks of {block}, {exact}).",
            kind=kind,
            bound=bound,
            sharing=sketch.sharing,
            block=BLOCK_BYTES,
            exact="all counted" if sketch.is_exact else "estimated from sampled blocks",
        ),
        say(
            "Prompts have {p50:,.0f} tokens (median; 90th percentile {p90:,.0f}); the first "
            "{shared:,.0f} of them ({shared90:,.0f}) stand at the beginning of an earlier prompt. "
            "Tokens are those of {tokenizer}.",
            p50=seen.prompt_p50,
            p90=seen.prompt_p90,
            shared=seen.shared_p50,
            shared90=seen.shared_p90,
            tokenizer=f"the {tokenizer.name} tokenizer" if sketch.num_bytes else "the file",
        ),
        say(
            "{share:.0%} of the requests share a page or more, {repeated:.1%} came before as they "
            "are; {later:.0%} are later turns of a session (the longest has {turns}).",
            share=seen.sharing_requests,
            repeated=seen.repeated,
            later=1 - seen.turns[1] / turns,
            turns=max(seen.turns),
        ),
        say(
            "The largest client, {client}, has {share:.0%} of the requests.",
            client=largest,
            share=most / sketch.num_requests,
        ),
    ]


def _findings(found: Lint, sketch: LogSketch) -> list[Statement]:
    if not sketch.num_bytes:
        lengths = say(
            "Not looked for: the log has no text. Only the lengths of shared beginnings were "
            "checked (L8, L9)."
        )
        return [lengths, *_listed(found)] if found.costs else [lengths]
    if not found.costs:
        return [say("None found by the rules.")]
    return _listed(found)


def _listed(found: Lint) -> list[Statement]:
    said = [
        say(
            "Tokens lost are those that {priced:,} requests compute anew if everything else is "
            "mended and this is not; they do not add up.",
            priced=found.num_priced,
        )
    ]
    for cost in found.costs[:MAX_SHOWN]:
        one = cost.finding
        here, there = one.example
        said.append(
            item(
                "{rule} {title}. {problem}, in {requests:,} requests. Lost: {lost:,} tokens "
                "({share:.1%}). Line {line}, {where}, character {character}: {here}; "
                "line {other_line}: {there}. Mend: {mend}{changes}.",
                rule=one.rule,
                title=one.title.capitalize(),
                problem=one.problem[0].upper() + one.problem[1:],
                requests=one.requests,
                lost=cost.tokens_lost,
                share=cost.share_lost,
                line=here.line,
                where=here.segment,
                character=here.character,
                here=here.text,
                other_line=there.line,
                there=there.text,
                mend=one.mend,
                changes=f" ({one.content_changes})" if one.content_changes else "",
            )
        )
    more = len(found.costs) - MAX_SHOWN
    if more > 0:
        said.append(say("{more} more are in the JSON.", more=more))
    return said


def _rates(
    rates: Forecast, setting: Setting, has_findings: bool, rates_hold: bool
) -> list[Statement]:
    gaps, left = rates.gaps, rates.mended_gaps
    said = [
        say(
            "Now {now:.1%}{now_margin}, after the mends {mended:.1%}{mended_margin}: simulated, "
            "first come first served, with {cache:,} tokens of cache in pages of {page} and "
            "{concurrency} {requests} at a time (95 % intervals over parts of the log).",
            now=rates.now.rate,
            now_half=rates.now.half_width,
            now_margin=margin(rates.now),
            mended=rates.mended.rate,
            mended_half=rates.mended.half_width,
            mended_margin=margin(rates.mended),
            cache=setting.cache_tokens,
            page=setting.page_size,
            concurrency=setting.concurrency,
            requests="request" if setting.concurrency == 1 else "requests",
        ),
        say(
            "Of the {best:.1%} that mended prompts could reach without a limit, {template:.1%} are "
            "lost in the prompts (template gap), {capacity:.1%} to the cache's size (capacity "
            "gap), at most {scheduling:.1%} to the order of service (scheduling gap).",
            best=gaps.best_bound,
            template=gaps.template,
            capacity=gaps.capacity,
            scheduling=gaps.scheduling,
        ),
    ]
    if has_findings:
        said.append(
            say(
                "After the mends {capacity:.1%} are left to the cache's size and at most "
                "{scheduling:.1%} to the order of service.",
                capacity=left.capacity,
                scheduling=left.scheduling,
            )
        )
    if rates_hold:
        lever = gaps.largest
        won = 0.0 if lever is None else gaps.by_lever[lever]
        said.append(
            say(
                "The largest lever is {lever} ({left:.1%})."
                if won >= MIN_LEVER
                else "No lever wins more than {least:.0%}.",
                lever=LEVERS.get(lever or "", ""),
                left=won,
                least=MIN_LEVER,
            )
        )
    return said


def _finding_json(cost: Cost) -> dict[str, Any]:
    one = cost.finding
    return {
        "rule": one.rule,
        "title": one.title,
        "where": one.where,
        "problem": one.problem,
        "mend": one.mend,
        "content_changes": one.content_changes,
        "requests": one.requests,
        "tokens_lost": cost.tokens_lost,
        "share_lost": cost.share_lost,
        "examples": [
            {"line": p.line, "segment": p.segment, "character": p.character, "text": p.text}
            for p in one.example
        ],
    }
