"""Retrieval-augmented generation: system prompt, retrieved documents, question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from testbed.core.request import Request
from testbed.workloads.parameters import (
    require_between,
    require_int,
    require_one_of,
)
from testbed.workloads.tokens import (
    output_tokens,
    prompt_tokens,
    require_token_space,
    require_vocab,
)
from testbed.workloads.zipf import zipf_draws


@dataclass(frozen=True)
class RagWorkload:
    """Each request: a tenant's system prompt, documents drawn by popularity, a question.

    tenants: clients, drawn evenly, each with a system prompt of its own. documents: the size of the
    corpus, common to all tenants; the k-th most popular is drawn in proportion to
    k ** -zipf_exponent, without repeats inside a request. questions: how many distinct ones there
    are, drawn evenly; None makes every question new. Lengths are in tokens.

    order, the arrangement of a prompt: `canonical` is system, documents by falling popularity,
    question; `relevance` leaves the documents in the order they were drawn; `scrambled` shuffles
    system and documents, the question last; `question_first` puts the question before the
    canonical rest. The draws do not depend on it, so orders compare on the same requests.
    All requests arrive at 0: give them other times with Retimed.

    Defaults: a corpus of 116 documents (public-domain PEPs) in chunks of 1,024 tokens, questions of
    20-60, outputs of 69 (median of Mooncake's synthetic long-document trace), system prompts of
    500-2,000. Tenants, documents a request and the Zipf exponent are assumptions.
    """

    num_requests: int = 1000
    tenants: int = 4
    system_tokens: int = 1000
    documents: int = 116
    document_tokens: int = 1024
    documents_per_request: int = 2
    zipf_exponent: float = 1.0
    questions: int | None = None
    question_tokens: int = 40
    output_tokens: int = 69
    order: Literal["canonical", "relevance", "scrambled", "question_first"] = "canonical"
    vocab: int | None = None
    seed: int = 0
    name: str = "rag"
    skipped_lines: ClassVar[int] = 0

    def __post_init__(self) -> None:
        for name in ("num_requests", "tenants", "documents", "document_tokens", "output_tokens"):
            require_int(self, name, 1)
        require_int(self, "system_tokens", 0)
        require_int(self, "documents_per_request", 1, self.documents)
        require_between(self, "zipf_exponent", 0, 10)
        if self.questions is not None:
            require_int(self, "questions", 1)
        require_int(self, "question_tokens", 1)
        require_one_of(self, "order", ("canonical", "relevance", "scrambled", "question_first"))
        require_vocab(self)
        require_int(self, "seed", 0)
        require_token_space(self, self._first_question + self._num_questions * self.question_tokens)

    def __len__(self) -> int:
        return self.num_requests

    def __iter__(self) -> Iterator[Request]:
        tenants, documents, questions, shuffles = (
            np.random.default_rng(stream) for stream in np.random.SeedSequence(self.seed).spawn(4)
        )
        for i in range(self.num_requests):
            tenant = int(tenants.integers(self.tenants))
            (drawn,) = zipf_draws(
                self.documents, self.zipf_exponent, self.documents_per_request, 1, documents
            ).tolist()
            question = i if self.questions is None else int(questions.integers(self.questions))
            segments = self._arranged(tenant, drawn, question, shuffles)
            yield Request(
                id=i,
                prompt=np.concatenate(
                    [prompt_tokens(*segment, self.vocab, self.seed) for segment in segments]
                ),
                output=output_tokens(i, self.output_tokens, self.vocab, self.seed),
                client=f"tenant-{tenant}",
            )

    @property
    def _first_document(self) -> int:
        return self.tenants * self.system_tokens

    @property
    def _first_question(self) -> int:
        return self._first_document + self.documents * self.document_tokens

    @property
    def _num_questions(self) -> int:
        return self.num_requests if self.questions is None else self.questions

    def _arranged(
        self, tenant: int, drawn: list[int], question: int, shuffles: np.random.Generator
    ) -> list[tuple[int, int]]:
        """The prompt as (first number, length) of each segment."""
        asked = (self._first_question + question * self.question_tokens, self.question_tokens)
        listed = drawn if self.order in ("relevance", "scrambled") else sorted(drawn)
        context = [(tenant * self.system_tokens, self.system_tokens)]
        context += [
            (self._first_document + document * self.document_tokens, self.document_tokens)
            for document in listed
        ]
        if self.order == "scrambled":
            context = [context[j] for j in shuffles.permutation(len(context))]
        return [asked, *context] if self.order == "question_first" else [*context, asked]
