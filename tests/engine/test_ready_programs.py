"""The ready programs on a real model, which answers for itself; the simulator decides alike."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.core.config import CacheConfig, SchedulerConfig
from testbed.engine.engine import Engine
from testbed.engine.loop import EngineRun
from testbed.policies import registry
from testbed.sim.recorded import replay
from testbed.workloads import ClosedLoopArrivals, Retimed
from testbed.workloads.programs import (
    ChatPrograms,
    ChoicePrograms,
    FewShotPrograms,
    GenerativeAgentPrograms,
    JsonPrograms,
    JudgePrograms,
    ProgramFamily,
    RagPrograms,
    ReActPrograms,
    SelfConsistencyPrograms,
    SingleShotPrograms,
    SkeletonOfThoughtPrograms,
    TreeOfThoughtPrograms,
    VoicePrograms,
)
from tests.engine.building import Models

CACHE = CacheConfig(num_pages=200, page_size=4)
SCHEDULER = SchedulerConfig(max_running=6, chunk_size=64)
MODEL: dict[str, Any] = {"num_programs": 3, "scripted": False, "vocab": 500}
FAMILIES: list[ProgramFamily] = [
    ChatPrograms(turns=2, message_tokens=(6, 9), **MODEL),
    ChoicePrograms(shots=2, shot_tokens=9, story_tokens=8, ending_tokens=3, **MODEL),
    FewShotPrograms(subjects=2, shots=2, shot_tokens=9, question_tokens=4, **MODEL),
    GenerativeAgentPrograms(personas=1, actions=2, moments=1, **MODEL),
    JsonPrograms(fields=2, document_tokens=30, **MODEL),
    JudgePrograms(rubrics=2, rubric_tokens=4, article_tokens=30, verdict_tokens=5, **MODEL),
    RagPrograms(instruction_tokens=9, passage_tokens=9, hops=2, answer_tokens=5, **MODEL),
    ReActPrograms(instruction_tokens=20, observation_tokens=6, thought_tokens=5, **MODEL),
    SelfConsistencyPrograms(samples=3, example_tokens=20, answer_tokens=5, **MODEL),
    SingleShotPrograms(prompt_tokens=(20, 40), answer_tokens=5, **MODEL),
    SkeletonOfThoughtPrograms(points=2, expansion_tokens=20, paragraph_tokens=5, **MODEL),
    TreeOfThoughtPrograms(instruction_tokens=[9, 4], thought_tokens=5, **MODEL),
    VoicePrograms(voices=2, voice_tokens=20, text_tokens=6, speech_tokens=5, **MODEL),
]


def serve(models: Models, family: ProgramFamily, concurrency: int) -> EngineRun:
    return Engine(models["tiny-llama"]).run(
        Retimed(family, ClosedLoopArrivals(concurrency)).requests(),
        cache=CACHE,
        scheduler=SCHEDULER,
        policy=registry.scheduling("lpm"),
        eviction=registry.eviction("lru"),
    )


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_runs_and_replays(models: Models, family: ProgramFamily) -> None:
    run = serve(models, family, concurrency=2)
    assert len(run.outputs) == len(run.added["prompt"]) >= 3
    again = replay(
        run.added,
        run.measured,
        cache=CACHE,
        scheduler=SCHEDULER,
        policy=registry.scheduling("lpm"),
        eviction=registry.eviction("lru"),
    )
    assert (again.diverged, run.log.first_difference(again.log)) == (None, None)


def test_what_the_model_said_is_read_on(models: Models) -> None:
    family = JudgePrograms(
        rubrics=2, rubric_tokens=4, article_tokens=30, verdict_tokens=5, hints=False, **MODEL
    )
    run = serve(models, family, concurrency=1)
    first, _, last = (prompt.tolist() for prompt in run.added["prompt"][:3])
    verdicts = [*run.outputs[0].tolist(), *run.outputs[1].tolist()]
    assert last[:-10] == [*first[:-4], *verdicts]
