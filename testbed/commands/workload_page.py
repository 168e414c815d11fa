"""The page that `testbed workload describe` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from testbed.workloads.description import ArrivalsShape, Description, Lengths, Sharing


def page(read: Mapping[str, object], found: Description) -> str:
    """The description as text; read: file, format, skipped_lines and tokenizer."""
    return "".join(f"{line}\n" for line in _lines(read, found))


def _lines(read: Mapping[str, object], found: Description) -> Iterator[str]:
    yield f"{read['file']}: {found.requests:,} requests, read as {read['format']}"
    tokens = f"by {read['tokenizer']}" if found.from_text else "as the file tells them"
    yield f"skipped lines: {read['skipped_lines']:,}; tokens: {tokens}"
    yield ""
    yield f"{'tokens':<10}{'total':>16}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}"
    yield f"{'prompts':<10}{_cells(found.prompts)}"
    if found.outputs is None:
        yield "outputs   not told"
    else:
        yield f"{'outputs':<10}{_cells(found.outputs)}{_of_all(found.outputs_known, found)}"
    yield ""
    yield from _arrival_lines(found.arrivals, found)
    if found.turns.most or found.sessions:
        yield (
            f"turns: {found.turns.p50:,.0f} answers in a prompt at the median, "
            f"{found.turns.p90:,.0f} at p90, {found.turns.most:,} at most; "
            f"sessions named: {found.sessions:,}"
        )
    yield ""
    yield from _sharing_lines(found.sharing, found)
    yield ""
    yield from _client_lines(found)


def _cells(lengths: Lengths) -> str:
    cells = [f"{value:>10,.0f}" for value in (lengths.p50, lengths.p90, lengths.p99, lengths.most)]
    return f"{lengths.total:>16,}{''.join(cells)}"


def _of_all(known: int, found: Description) -> str:
    return "" if known == found.requests else f"  ({known:,} requests tell theirs)"


def _arrival_lines(arrivals: ArrivalsShape | None, found: Description) -> Iterator[str]:
    if arrivals is None:
        yield "arrivals: not told"
        return
    if arrivals.span_s == 0:
        yield "arrivals: all at once"
        return
    yield (
        f"arrivals: {arrivals.rate_per_s:,.2f} per s over {arrivals.span_s:,.0f} s"
        f"{_of_all(found.arrivals_known, found)}; gaps' standard deviation over mean "
        f"{arrivals.cv:.2f} (Poisson: 1); busiest hundredth {arrivals.peak_to_mean:.2f} x the mean"
    )
    if arrivals.out_of_order:
        yield f"out of order: {arrivals.out_of_order:,} requests are logged after a later one"


def _sharing_lines(sharing: Sharing | None, found: Description) -> Iterator[str]:
    if sharing is None:
        yield "sharing: not told (lengths alone)"
        return
    yield (
        f"sharing bound at pages of {sharing.page_size}: {sharing.bound:.3f} of the prompt tokens "
        f"({sharing.distinct_pages:,} distinct pages)"
    )
    depth = sharing.depth
    yield (
        f"shared with another request: {depth.p50:,.0f} tokens of a prompt at the median, "
        f"{depth.p90:,.0f} at p90, {depth.most:,} at most "
        f"({sharing.sampled:,} requests looked at)"
    )
    if sharing.most_shared:
        yield "prefixes that save most:"
        yield f"{'tokens':>12}{'requests':>12}{'share':>8}   for example line"
        for prefix in sharing.most_shared:
            share = prefix.requests / found.requests
            yield f"{prefix.tokens:>12,}{prefix.requests:>12,}{share:>8.1%}   {prefix.line:,}"


def _client_lines(found: Description) -> Iterator[str]:
    rest = found.client_count - len(found.clients)
    yield f"clients: {found.client_count:,}"
    yield f"{'':<26}{'requests':>12}{'share':>8}{'tokens':>8}{'bound':>8}"
    for client in found.clients:
        name = _printable(client.name)
        name = name if len(name) <= 24 else f"{name[:21]}..."
        bound = "-" if client.bound is None else f"{client.bound:.3f}"
        yield (
            f"  {name:<24}{client.requests:>12,}{client.requests / found.requests:>8.1%}"
            f"{client.prompt_tokens / found.prompts.total:>8.1%}{bound:>8}"
        )
    if rest:
        yield f"  and {rest:,} more"


def _printable(name: str) -> str:
    """The name without what moves a terminal's cursor: such characters as their numbers."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in name)
