"""Decode steps at fixed addresses, run in Triton's interpreter instead of being captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.engine.attention_backend import StepRows
from testbed.engine.kv_pool import KVPool
from testbed.engine.loop import serve
from testbed.engine.model import Model
from testbed.engine.sampling import Sampler
from testbed.policies import registry
from tests.engine.building import Models, PoisoningExecutor, reference, some_requests
from tests.kernels.conftest import OBSTACLE

if TYPE_CHECKING:
    from testbed.engine.cuda_graphs import DecodeGraphs
    from testbed.engine.triton_attention import TritonAttention

pytestmark = [
    pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE)),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]
PAGE = 16


class Recording:
    """Counts what is captured, and captures nothing."""

    def __init__(self) -> None:
        self.captured = 0

    def __call__(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self.captured += 1
        return work


@pytest.fixture
def model(models: Models) -> Model:
    return models["tiny-llama"]


def pool_of(model: Model, num_pages: int = 40) -> KVPool:
    """A pool full of keys and values of an unknown past."""
    pool = KVPool(model, num_pages, PAGE)
    generator = torch.Generator().manual_seed(0)
    for tensor in (*pool.keys, *pool.values):
        tensor[:num_pages].normal_(generator=generator)
    return pool


def attention_of(model: Model, pool: KVPool, *, shares: bool = False) -> TritonAttention:
    from testbed.engine.triton_attention import TritonAttention

    return TritonAttention(model, pool, share_prefixes=shares, min_saved_bytes=1)


def graphs_of(
    model: Model,
    attention: TritonAttention,
    sizes: tuple[int, ...] = (2, 4),
    max_tokens: int = 100,
    record: Recording | None = None,
) -> DecodeGraphs:
    from testbed.engine.cuda_graphs import DecodeGraphs

    return DecodeGraphs(
        model, attention, sizes=sizes, max_tokens=max_tokens, record=record or Recording()
    )


def decode_rows(ends: list[int], shared_pages: int = 0) -> tuple[np.ndarray, StepRows]:  # type: ignore[type-arg]
    """A decode step of sequences that are so long with their new token, on pages of their own but
    for the first few."""
    draw = np.random.default_rng(sum(ends))
    order = draw.permutation(40).astype(np.int32)
    first = shared_pages
    tables = []
    for end in ends:
        count = -(-end // PAGE) - shared_pages
        tables.append(np.concatenate((order[:shared_pages], order[first : first + count])))
        first += count
    lengths = np.array(ends, dtype=np.int64)
    rows = StepRows(len(ends), lengths - 1, np.ones_like(lengths), tables)
    return draw.integers(0, 512, len(ends)), rows


@torch.inference_mode()
def eager(model: Model, attention: TritonAttention, tokens, rows) -> torch.Tensor:  # type: ignore[no-untyped-def]
    step = attention.plan(rows)
    inputs = [torch.from_numpy(a) for a in (tokens, rows.starts, np.arange(len(tokens)))]
    return model.forward(*inputs, step=step)


@torch.inference_mode()
def replayed(graphs: DecodeGraphs, tokens, rows) -> torch.Tensor | None:  # type: ignore[no-untyped-def]
    work = graphs.prepare(tokens, rows)
    return None if work is None else work().clone()


@pytest.mark.parametrize("ends", [[37], [5, 80], [1, 16, 17], [100, 33, 64, 2]])
def test_a_padded_batch_gives_the_logits_of_the_bare_one(model: Model, ends: list[int]) -> None:
    attention = attention_of(model, pool_of(model))
    logits = replayed(graphs_of(model, attention), *decode_rows(ends))
    torch.testing.assert_close(
        logits, eager(model, attention, *decode_rows(ends)), rtol=0, atol=1e-5
    )


def test_earlier_steps_leave_nothing_behind(model: Model) -> None:
    attention = attention_of(model, pool_of(model))
    graphs = graphs_of(model, attention)
    for ends in ([100, 90, 80, 70], [10, 30, 20], [48], [90, 12]):
        logits = replayed(graphs, *decode_rows(ends))
        torch.testing.assert_close(
            logits, eager(model, attention, *decode_rows(ends)), rtol=0, atol=1e-5
        )


def test_padding_rows_are_sequences_of_one_token_on_the_padding_page(model: Model) -> None:
    from testbed.engine.cuda_graphs import DecodeBuffers

    pool = pool_of(model)
    buffers = DecodeBuffers(attention_of(model, pool), max_rows=4, max_tokens=40)
    assert buffers.page_table.shape == (4, 4)  # three pages of 16 hold 40 tokens, and one more
    assert (buffers.page_table == pool.padding_page).all()
    tokens = np.array([7, 8, 9], dtype=np.int32)
    lengths = np.array([40, 17, 3], dtype=np.int32)
    table = np.array([[1, 2, 3], [4, 5, 40], [6, 40, 40]], dtype=np.int32)
    buffers.fill(4, tokens, lengths, table, None)
    assert buffers["tokens"].tolist() == [7, 8, 9, 0]
    assert buffers["kv_lens"].tolist() == [40, 17, 3, 1]
    buffers.fill(2, tokens[:1], lengths[2:], table[2:, :1], None)
    assert buffers["tokens"].tolist() == [7, 0, 0, 0]
    assert buffers["kv_lens"].tolist() == [3, 1, 1, 1]
    # The second row is padding now; the others are not in this graph.
    assert buffers.page_table[:2].tolist() == [[6, 40, 40, 40], [40, 40, 40, 40]]
    buffers.fill(4, tokens, np.array([3, 3, 3], dtype=np.int32), table[:, :1], None)
    assert buffers.page_table.tolist() == [[n, 40, 40, 40] for n in (1, 4, 6, 40)]


def test_padding_rows_do_not_read_what_the_padding_page_held(model: Model) -> None:
    pool = pool_of(model)
    for tensor in (*pool.keys, *pool.values):
        tensor[pool.padding_page] = torch.nan
    attention = attention_of(model, pool)
    graphs = graphs_of(model, attention, sizes=(4,))
    tokens, rows = decode_rows([20, 50])
    with torch.inference_mode():
        assert graphs.prepare(tokens, rows) is not None
        everything = graphs._buffers.work(model, attention, 4, False)()
    assert everything.isfinite().all()


def test_what_no_graph_holds_runs_op_by_op(model: Model) -> None:
    graphs = graphs_of(model, attention_of(model, pool_of(model)), max_tokens=32)
    assert replayed(graphs, *decode_rows([32])) is not None
    # The next token of a sequence that fills the table: out of bounds in nano-vllm (PR 258).
    assert replayed(graphs, *decode_rows([33])) is None
    assert replayed(graphs, *decode_rows([9] * 5)) is None
    tokens, rows = decode_rows([9, 9])
    assert replayed(graphs, tokens, rows._replace(num_decodes=1)) is None


def test_each_size_is_captured_once(model: Model) -> None:
    record = Recording()
    graphs = graphs_of(model, attention_of(model, pool_of(model)), (1, 2), record=record)
    for ends in ([3], [4], [3, 3], [5]):
        replayed(graphs, *decode_rows(ends))
    assert record.captured == 2
    graphs.capture()
    assert record.captured == 2


def test_capturing_ahead_covers_steps_that_share_pages(model: Model) -> None:
    record = Recording()
    attention = attention_of(model, pool_of(model), shares=True)
    graphs = graphs_of(model, attention, (1, 2), record=record)
    graphs.capture()
    assert record.captured == 4
    replayed(graphs, *decode_rows([40, 40], shared_pages=2))
    assert record.captured == 4


@pytest.mark.parametrize("room", [True, False])
def test_shared_pages_change_no_logits(
    model: Model, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from testbed.engine import cuda_graphs

    pool = pool_of(model)
    sharing = attention_of(model, pool, shares=True)
    tokens, rows = decode_rows([40, 60, 33], shared_pages=2)
    cut = sharing.cut_shared(sharing.page_table(rows), np.array([40, 60, 33], dtype=np.int32))
    assert cut is not None
    assert cut.suffix_starts.tolist() == [32, 32, 32]
    expected = eager(model, attention_of(model, pool), tokens, rows)
    torch.testing.assert_close(eager(model, sharing, tokens, rows), expected, rtol=0, atol=1e-5)
    graphs = graphs_of(model, sharing)
    if not room:
        monkeypatch.setattr(cuda_graphs, "MAX_SHARED_PARTS", 0)
    torch.testing.assert_close(replayed(graphs, tokens, rows), expected, rtol=0, atol=1e-5)


def test_sizes_must_hold_a_row(model: Model) -> None:
    attention = attention_of(model, pool_of(model))
    with pytest.raises(ValueError, match=r"sizes=\[0, 4\]: at least one, each at least 1"):
        graphs_of(model, attention, sizes=(0, 4))


def test_a_served_run_has_transformers_tokens(models: Models) -> None:
    model = models["tiny-llama"]
    requests = some_requests(3, alone=8, outputs=4)
    expected = {r.id: reference(model, r)[0].tolist() for r in requests}
    cache = CacheConfig(num_pages=30, page_size=PAGE)
    pool = KVPool(model, cache.num_pages, cache.page_size)
    pool.poison()
    attention = attention_of(model, pool, shares=True)
    record = Recording()
    graphs = graphs_of(model, attention, record=record)
    run = serve(
        requests,
        executor=PoisoningExecutor(model, pool, attention, Sampler(), graphs),
        cache=cache,
        scheduler=SchedulerConfig(chunk_size=64),
        policy=registry.scheduling("fcfs"),
        eviction=registry.eviction("lru"),
    )
    assert {id: tokens.tolist() for id, tokens in run.outputs.items()} == expected
    assert record.captured > 0
