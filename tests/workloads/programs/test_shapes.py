"""The prompts of each family, token by token, in small."""

from __future__ import annotations

from math import isclose
from typing import Any

import numpy as np
import pytest

from testbed.core.program import ProgramRunner
from testbed.core.request import Request
from testbed.workloads.programs import (
    AgentCall,
    ChatPrograms,
    ChoicePrograms,
    FewShotPrograms,
    GenerativeAgentPrograms,
    JsonPrograms,
    JudgePrograms,
    RagPrograms,
    ReActPrograms,
    SelfConsistencyPrograms,
    SingleShotPrograms,
    SkeletonOfThoughtPrograms,
    TreeOfThoughtPrograms,
    VoicePrograms,
)
from tests.core.building import tokens_of

from .driving import answers, drive, prompts, shared_tokens


def test_chat_goes_on_from_all_that_was_said() -> None:
    chat = ChatPrograms(num_programs=2, turns=3, system_tokens=2, message_tokens=3, answer_tokens=2)
    requests = drive(chat, concurrency=1)
    a, b, _ = answers(requests[:3])
    # 0-1 is the system prompt; 2-10 belong to the first chat, 11-19 to the second.
    assert prompts(requests)[:3] == [
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4, *a, 5, 6, 7],
        [0, 1, 2, 3, 4, *a, 5, 6, 7, *b, 8, 9, 10],
    ]
    assert prompts(requests)[3] == [0, 1, 11, 12, 13]
    assert [r.turn for r in requests] == [0, 1, 2, 0, 1, 2]


def test_a_chat_keeps_what_the_model_really_said() -> None:
    chat = ChatPrograms(num_programs=1, turns=2, message_tokens=2, scripted=False)
    first, second = drive(chat, answered=lambda request: tokens_of([99]))
    assert first.prompt.tolist() == [0, 1]
    assert second.prompt.tolist() == [0, 1, 99, 2, 3]
    assert first.output is None
    assert 4 <= first.max_new_tokens <= 8


def test_people_think_between_turns_not_after() -> None:
    chat = ChatPrograms(num_programs=1, turns=2, think_seconds=30.0)
    runner = ProgramRunner(chat)
    (first,) = runner.take(0.0)
    runner.left(first.id, first.output, 2.0)
    assert runner.next_time == 32.0
    (second,) = runner.take(32.0)
    runner.left(second.id, second.output, 33.0)
    assert runner.take(1e6) == []
    assert runner.ended == 1


@pytest.mark.parametrize(
    ("answer", "mean", "optimum"),
    [((4, 8), 6, 0.603), ((256, 512), 384, 0.75)],
    ids=["short", "long"],
)
def test_the_papers_chats_can_reach_what_the_paper_says(
    answer: tuple[int, int], mean: int, optimum: float
) -> None:
    # Mean lengths m and a: prompts are m, 2m + a, 3m + 2a, 4m + 3a, of which 0, m + a, 2 (m + a)
    # and 3 (m + a) are there (less one token an answer): 6 (m + a) of 10 m + 6 a.
    assert isclose(6 * (384 + mean) / (3840 + 6 * mean), optimum, abs_tol=0.003)
    requests = drive(ChatPrograms(num_programs=200, answer_tokens=answer))
    prompt_tokens = sum(len(r.prompt) for r in requests)
    reached = shared_tokens(requests, cache_outputs=True) / prompt_tokens
    assert reached == pytest.approx(optimum, abs=0.01)


def test_few_shot_questions_follow_their_subjects_examples() -> None:
    family = FewShotPrograms(num_programs=6, subjects=3, shots=2, shot_tokens=2, question_tokens=3)
    # Subject s has the numbers 4 s to 4 s + 3; question i has 12 + 3 i and the next two.
    assert prompts(drive(family)) == [
        [*range(4 * s, 4 * s + 4), *range(12 + 3 * i, 15 + 3 * i)]
        for i, s in enumerate([0, 0, 1, 1, 2, 2])
    ]


def test_examples_are_as_long_together_as_mmlus() -> None:
    # Quartiles as measured. The median of 57 blocks is off by 1.25 * 0.45 / sqrt(57), 7 % of it;
    # that of a hundred seeds, by 0.7 %.
    blocks: list[int] = []
    for seed in range(100):
        family = FewShotPrograms(seed=seed)
        lengths = [len(family.texts[0][shot]) for shot in range(57 * 5)]
        blocks += np.reshape(lengths, (57, 5)).sum(axis=1).tolist()
    assert np.median(blocks) == pytest.approx(809, rel=0.02)
    assert np.quantile(blocks, [0.25, 0.75]) == pytest.approx([630, 1118], rel=0.07)


def test_shuffled_few_shot_draws_subjects_evenly() -> None:
    family = FewShotPrograms(num_programs=900, subjects=3, shots=1, shot_tokens=1, order="shuffled")
    counts = np.bincount([prompt[0] for prompt in prompts(drive(family))])
    assert counts == pytest.approx([300] * 3, rel=0.15)


def test_choices_share_on_two_levels() -> None:
    family = ChoicePrograms(
        num_programs=2, shots=2, shot_tokens=2, story_tokens=3, endings=2, ending_tokens=1
    )
    first, second = [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 9, 10, 11]
    requests = drive(family)
    # The hints go ahead, then each story's endings.
    assert sorted(prompts(requests)) == sorted(
        [first, [*first, 7], [*first, 8], second, [*second, 12], [*second, 13]]
    )
    # 4 examples and two stories of 3 are computed once, and 4 endings: 14 of 2 * (7 + 8 + 8).
    assert shared_tokens(requests) == 46 - 14


def test_choices_need_no_hint() -> None:
    requests = drive(ChoicePrograms(num_programs=3, hints=False))
    assert len(requests) == 12


def test_rag_puts_popular_passages_first() -> None:
    family = RagPrograms(
        num_programs=200,
        instruction_tokens=2,
        passages=4,
        passage_tokens=1,
        retrieved_passages=2,
        question_tokens=1,
    )
    seen = prompts(drive(family))
    for i, (first, second, low, high, question) in enumerate(seen):
        assert (first, second, question) == (0, 1, 6 + i)
        assert 2 <= low < high < 6
    # P(the most popular is one of two drawn) is 0.48 + the sum over the others of p q / (1 - p),
    # with p, q of 12 / 25 * (1, 1/2, 1/3, 1/4): 0.48 + 0.48 (0.24/0.76 + 0.16/0.84 + 0.12/0.88).
    share = sum(prompt[2] == 2 for prompt in seen) / 200
    assert share == pytest.approx(0.789, abs=0.07)


def test_rag_hops_go_on_from_the_answer() -> None:
    family = RagPrograms(num_programs=1, instruction_tokens=1, passage_tokens=1, hops=2)
    first, second = drive(family)
    assert first.output is not None
    grown = [*first.prompt.tolist(), *first.output.tolist()]
    assert second.prompt.tolist()[: len(grown)] == grown
    assert len(second.prompt) > len(grown) + 3


def test_react_appends_thought_and_observation() -> None:
    family = ReActPrograms(
        num_programs=1,
        instruction_tokens=2,
        question_tokens=1,
        steps=3,
        observation_tokens=2,
        thought_tokens=1,
    )
    requests = drive(family)
    (a,), (b,), _ = answers(requests)
    assert prompts(requests) == [[0, 1, 2], [0, 1, 2, a, 3, 4], [0, 1, 2, a, 3, 4, b, 5, 6]]


def test_tools_take_their_time() -> None:
    runner = ProgramRunner(ReActPrograms(num_programs=1, steps=2, tool_seconds=(0.05, 2.0)))
    (first,) = runner.take(0.0)
    runner.left(first.id, first.output, 1.0)
    assert runner.next_time is not None
    assert 1.05 <= runner.next_time <= 3.0


def test_agents_repeat_what_they_do() -> None:
    family = GenerativeAgentPrograms(num_programs=1, personas=2, actions=3, moments=2)
    requests = drive(family)
    assert len(requests) == 2 * len(family.calls)
    once, again = prompts(requests)[:5], prompts(requests)[5:]
    assert once == again
    assert answers(requests)[:5] == answers(requests)[5:]
    sector = answers(requests)[3]
    # The last call reads where the one before it decided to go.
    assert once[4][203:213] == sector
    assert [len(prompt) for prompt in once] == [250, 213, 45, 650, 293]


def test_calls_are_options() -> None:
    calls = (AgentCall(2, 1, 1, 3), AgentCall(1, 0, 1, 1, reads_answer=True))
    family = GenerativeAgentPrograms(num_programs=1, personas=1, actions=1, moments=1, calls=calls)
    requests = drive(family)
    # 0-1 the first template, 2 persona, 3 action; 4 the second template, 5 its action.
    assert prompts(requests) == [[0, 1, 2, 3], [4, *answers(requests)[0], 5]]


def test_agents_of_one_kind_share_templates() -> None:
    family = GenerativeAgentPrograms(num_programs=40, personas=2, actions=1, moments=1)
    requests = drive(family)
    # Two distinct rounds: all is computed twice but the templates of 190, 30, 430 and 200.
    distinct = 2 * (250 + 213 + 45 + 650 + 293) - 850
    assert shared_tokens(requests) == 40 * (250 + 213 + 45 + 650 + 293) - distinct


def test_a_tree_of_thought_branches_at_every_answer() -> None:
    family = TreeOfThoughtPrograms(
        num_programs=1,
        branches=2,
        instruction_tokens=[1, 1],
        question_tokens=1,
        thought_tokens=(3, 5),
        hints=False,
    )
    requests = drive(family)
    # Level instructions are 0 and 1, the question is 2.
    root = [0, 2]
    assert prompts(requests)[:2] == [root, root]
    plans = answers(requests)[:2]
    assert plans[0] != plans[1]
    assert sorted(prompts(requests)[2:]) == sorted([*root, *plan, 1] for plan in plans * 2)


def test_a_tree_has_a_hint_for_each_node_with_branches() -> None:
    assert len(drive(TreeOfThoughtPrograms(num_programs=1))) == (2 + 4 + 8 + 16) + (1 + 2 + 4 + 8)
    assert len(drive(TreeOfThoughtPrograms(num_programs=1, hints=False))) == 30


def test_a_skeleton_expands_the_points_that_were_made() -> None:
    family = SkeletonOfThoughtPrograms(
        num_programs=1,
        points=2,
        outline_tokens=1,
        expansion_tokens=1,
        topic_tokens=1,
        point_tokens=2,
        paragraph_tokens=3,
    )
    requests = drive(family)
    by_prompt = {tuple(r.prompt.tolist()): r.output for r in requests}
    # 0 outline, 1 expansion, 2-3 and 4-5 the points' numbers, 6 the topic.
    first, second = (0, 6, 2, 3), (0, 6, 2, 3, *answers(requests)[0], 4, 5)
    assert set(by_prompt) == {
        first,
        second,
        *((1, 6, *np.asarray(by_prompt[point]).tolist()) for point in (first, second)),
    }


def test_samples_share_the_whole_prompt() -> None:
    family = SelfConsistencyPrograms(num_programs=1, samples=3, example_tokens=2, question_tokens=1)
    requests = drive(family)
    assert prompts(requests) == [[0, 1, 2]] * 4
    assert len({tuple(answer) for answer in answers(requests)[1:]}) == 3


@pytest.mark.parametrize(
    ("family", "field"),
    [
        (ChatPrograms, "system_tokens"),
        (JsonPrograms, "instruction_tokens"),
        (JudgePrograms, "system_tokens"),
        (RagPrograms, "instruction_tokens"),
        (ReActPrograms, "instruction_tokens"),
        (SelfConsistencyPrograms, "example_tokens"),
        (SkeletonOfThoughtPrograms, "outline_tokens"),
        (SkeletonOfThoughtPrograms, "expansion_tokens"),
    ],
)
def test_shared_texts_may_vary_in_length(family: Any, field: str) -> None:
    lengths = {
        len(texts[0])
        for seed in range(8)
        for texts in family(seed=seed, **{field: (3, 9)}).texts[:2]
    }
    assert len(lengths & set(range(3, 10))) > 1


def test_a_judge_reads_every_verdict_that_came() -> None:
    family = JudgePrograms(
        num_programs=1,
        rubrics=3,
        system_tokens=1,
        rubric_tokens=1,
        article_tokens=2,
        verdict_tokens=1,
        hints=False,
    )
    # 0 system, 1-3 rubrics, 4-13 the introduction of the verdicts, 14-15 the article.
    article, introduction = [0, 14, 15], list(range(4, 14))
    requests = drive(family)
    assert prompts(requests)[:3] == [[*article, rubric] for rubric in (1, 2, 3)]
    verdicts = [answer[0] for answer in answers(requests)[:3]]
    assert prompts(requests)[3] == [*article, *verdicts, *introduction]

    def refuse_the_second(request: Request) -> Any:
        return None if request.id == 1 else request.output

    requests = drive(family, answered=refuse_the_second)
    assert prompts(requests)[3] == [*article, verdicts[0], verdicts[2], *introduction]


def test_json_sends_the_document_again_for_each_field() -> None:
    family = JsonPrograms(
        num_programs=1,
        fields=2,
        instruction_tokens=1,
        document_tokens=2,
        key_tokens=1,
        value_tokens=1,
    )
    requests = drive(family)
    (value,), _ = answers(requests)
    assert prompts(requests) == [[0, 3, 4, 1], [0, 3, 4, 1, value, 2]]


def test_voices_are_asked_for_by_popularity() -> None:
    family = VoicePrograms(num_programs=600, voices=3, voice_tokens=1, text_tokens=1)
    counts = np.bincount([prompt[0] for prompt in prompts(drive(family))], minlength=3)
    # 1 : 1/2 : 1/3 of 600.
    assert counts[:3] == pytest.approx([327, 164, 109], rel=0.15)


def test_single_shots_share_nothing() -> None:
    assert shared_tokens(drive(SingleShotPrograms(num_programs=50))) == 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ChatPrograms(turns=0), "ChatPrograms.turns=0"),
        (lambda: ChatPrograms(think_seconds=-1.0), "ChatPrograms.think_seconds=-1.0"),
        (lambda: RagPrograms(passages=2), "RagPrograms.retrieved_passages=3.* from 1 to 2"),
        (lambda: RagPrograms(hops=0), "RagPrograms.hops=0"),
        (lambda: FewShotPrograms(order="sorted"), "FewShotPrograms.order='sorted'"),  # type: ignore[arg-type]
        (lambda: ChoicePrograms(endings=0), "ChoicePrograms.endings=0"),
        (lambda: ReActPrograms(steps=(5, 3)), r"ReActPrograms.steps=\(5, 3\)"),
        (lambda: GenerativeAgentPrograms(actions=10**6), "actions=1000000.* from 1 to 8388"),
        (
            lambda: GenerativeAgentPrograms(calls=()),
            r"GenerativeAgentPrograms.calls=\(\): at least",
        ),
        (lambda: AgentCall(-1, 0, 0, 1), "AgentCall.template_tokens=-1"),
        (lambda: AgentCall(0, 0, 0, 0), "AgentCall.answer_tokens=0"),
        (lambda: TreeOfThoughtPrograms(instruction_tokens=[]), r"instruction_tokens=\[\]"),
        (lambda: TreeOfThoughtPrograms(branches=0), "TreeOfThoughtPrograms.branches=0"),
        (lambda: SkeletonOfThoughtPrograms(points=0), "SkeletonOfThoughtPrograms.points=0"),
        (lambda: SelfConsistencyPrograms(samples=0), "SelfConsistencyPrograms.samples=0"),
        (lambda: JudgePrograms(rubrics=0), "JudgePrograms.rubrics=0"),
        (lambda: JsonPrograms(fields=0), "JsonPrograms.fields=0"),
        (lambda: VoicePrograms(zipf_exponent=-1), "VoicePrograms.zipf_exponent=-1"),
        (lambda: SingleShotPrograms(prompt_tokens=0), "SingleShotPrograms.prompt_tokens=0"),
    ],
)
def test_bad_parameters_are_named(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
