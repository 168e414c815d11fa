"""Chat logs with a known fault each, and the same logs without: made up, or from real texts.

Three applications: `rag` (tools, instructions, examples, retrieved chunks, a question), `chat`
(sessions with tools, whose turns append to their history) and `raw` (prompts that nobody divided).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Chat = dict[str, Any]

_WORDS = (
    "account balance booking cabin carrier change charge city claim class confirm contact "
    "cost credit customer date delay deliver deposit detail device document email exchange "
    "fare file flight form gate goods guest invoice item label limit loan luggage member "
    "method model note notice number offer order owner parcel party passenger payment permit "
    "phone plan policy price product profile proof quote rate reason receipt record refund "
    "region rental repair report request reserve return route rule seat sender service shop "
    "status stock store supply tax team ticket title total track travel trip update upgrade "
    "user value vendor voucher weight window"
)
WORDS = _WORDS.split()


@dataclass(frozen=True)
class Material:
    """Texts that logs are made of. examples: few-shot examples, each `Q: ...` and an answer line.

    sessions: for each, what user and assistant say in turn.
    """

    instructions: list[str]
    tools: list[dict[str, Any]]
    examples: list[str]
    chunks: list[str]
    sessions: list[list[str]]


def invented(seed: int = 0) -> Material:
    """Texts of random words."""
    rng = random.Random(seed)

    def sentence(count: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(count)).capitalize() + "."

    tools = [
        {
            "type": "function",
            "function": {
                "name": f"{rng.choice(WORDS)}_{i}",
                "description": sentence(10),
                "parameters": {
                    "type": "object",
                    "properties": {
                        name: {"type": "string", "description": sentence(6)}
                        for name in rng.sample(WORDS, 3)
                    },
                },
            },
        }
        for i in range(5)
    ]
    return Material(
        [f"- {sentence(12)}" for _ in range(24)],
        tools,
        [f"Q: {sentence(9)[:-1]}?\nA: {sentence(14)}" for _ in range(12)],
        [" ".join(sentence(15) for _ in range(4)) for _ in range(24)],
        [[sentence(rng.randrange(12, 30)) for _ in range(9)] for _ in range(80)],
    )


def from_data(folder: Path) -> Material:
    """An airline agent's policy, tools and dialogues (tau-bench), MMLU examples, parts of PEPs."""
    policy = (folder / "agents/tau-bench/airline_wiki.md").read_text(encoding="utf-8")
    policy = policy.replace("The current time is 2024-05-15 15:00:00 EST.\n\n", "")
    cot = json.loads(
        (folder / "fewshot/mmlu_flan_cot_fewshot/_cot_prompts.json").read_text(encoding="utf-8")
    )
    examples = [
        " ".join(part.split("\nA:")[0].split()) + "\nA:" + " ".join(part.split("\nA:")[1].split())
        for subject in ("anatomy", "astronomy", "marketing", "virology")
        for part in cot[subject].split("\n\n")
        if part.startswith("Q:") and "\nA:" in part
    ]
    peps = (folder / "rag/peps_public_domain.jsonl").read_text(encoding="utf-8").splitlines()
    chunks = [" ".join(json.loads(line)["text"].split())[400:1200] for line in peps[:24]]
    trajectories = json.loads(
        (folder / "agents/tau-bench/gpt-4o-airline.json").read_text(encoding="utf-8")
    )
    sessions = []
    for one in trajectories[:80]:
        said = [m["content"] for m in one["traj"] if m["role"] in ("user", "assistant")]
        sessions.append([text for text in said if text][:9])
    return Material(
        policy.splitlines(),
        json.loads((folder / "tools/tau_airline_tools.json").read_text(encoding="utf-8")),
        [example.replace("Q:Q:", "Q:") for example in examples],
        chunks,
        [one for one in sessions if len(one) >= 5],
    )


@dataclass
class Turn:
    """One request before it is written down."""

    number: int
    rng: random.Random
    client: str
    session: str | None
    tools: list[dict[str, Any]]
    system: str
    history: list[str]
    examples: list[str]
    chunks: list[str]
    question: str
    system_in_user: bool = False
    question_first: bool = False

    def chat(self) -> Chat:
        """As a line of a log in OpenAI's message format."""
        system = self.system
        if self.examples:
            system += "\n\nExamples:\n\n" + "\n\n".join(self.examples)
        messages = [{"role": "system", "content": system}]
        for i, text in enumerate(self.history):
            messages.append({"role": ("user", "assistant")[i % 2], "content": text})
        context = "".join(f"[{i + 1}] {chunk}\n\n" for i, chunk in enumerate(self.chunks))
        if self.question_first:
            context = f"{self.question}\n\n{context}"
        else:
            context += self.question
        messages.append({"role": "user", "content": context})
        line: Chat = {"user": self.client, "messages": messages}
        if self.session is not None:
            line["session_id"] = self.session
        if self.tools:
            line["tools"] = self.tools
        return line


Fault = Callable[[Turn], None]


def rag(material: Material, fault: Fault | None = None, count: int = 240) -> list[Chat]:
    """Single turns of 20 tenants: 3 of 24 chunks in the order of their ids, then a new question."""
    rng = random.Random(1)
    lines = []
    for number in range(count):
        chosen = sorted(rng.sample(range(8), 3) if rng.random() < 0.7 else rng.sample(range(24), 3))
        turn = Turn(
            number,
            random.Random(number),
            f"tenant-{number % 20}",
            None,
            material.tools,
            "\n".join(material.instructions),
            [],
            material.examples[:6],
            [material.chunks[i] for i in chosen if i < len(material.chunks)],
            f"Question: {' '.join(rng.choice(WORDS) for _ in range(14))} {number}?",
        )
        if fault is not None:
            fault(turn)
        lines.append(turn.chat())
    return lines


def chat(material: Material, fault: Fault | None = None, named: bool = True) -> list[Chat]:
    """Sessions of up to 5 turns, interleaved; `named` says whether the log tells the sessions."""
    rng = random.Random(2)
    pending = [
        (i, turn)
        for i, said in enumerate(material.sessions)
        for turn in range((len(said) + 1) // 2)
    ]
    order = sorted(pending, key=lambda one: (one[1] * 40 + one[0] + rng.random(), one))
    lines = []
    for number, (session, turn_number) in enumerate(order):
        said = material.sessions[session]
        turn = Turn(
            number,
            random.Random(number),
            f"tenant-{session % 20}",
            f"session-{session}" if named else None,
            material.tools,
            "\n".join(material.instructions),
            said[: 2 * turn_number],
            [],
            [],
            said[2 * turn_number],
        )
        if fault is not None:
            fault(turn)
        lines.append(turn.chat())
    return lines


def raw(material: Material, fault: Fault | None = None, count: int = 240) -> list[Chat]:
    """The `rag` prompts, each written as one text."""
    lines = []
    for line in rag(material, fault, count):
        text = "\n\n".join(message["content"] for message in line["messages"])
        lines.append({"prompt": text, "user": line["user"]})
    return lines


def timestamp_first(turn: Turn) -> None:
    """L1"""
    minute, second = divmod(turn.number * 7, 60)
    turn.system = f"Current time: 2026-03-04 10:{minute % 60:02d}:{second:02d}\n" + turn.system


def request_id_in_the_middle(turn: Turn) -> None:
    """L1"""
    lines = turn.system.split("\n")
    lines.insert(4, f"Request: {turn.rng.getrandbits(128):032x}")
    turn.system = "\n".join(lines)


def timestamp_before_history(turn: Turn) -> None:
    """L1"""
    turn.system += f"\nIt is 10:{turn.number % 60:02d} now."


def tenant_in_system(turn: Turn) -> None:
    """L2"""
    branch = WORDS[int(turn.client.removeprefix("tenant-"))]
    turn.system = f"You work for the {branch} branch.\n" + turn.system


def user_field_first(turn: Turn) -> None:
    """L2"""
    turn.system = f"user: person{turn.number % 90}@example.com\n" + turn.system


def tools_shuffled(turn: Turn) -> None:
    """L3"""
    turn.tools = turn.rng.sample(turn.tools, len(turn.tools))


def keys_shuffled(turn: Turn) -> None:
    """L3"""
    turn.tools = [dict(turn.rng.sample(list(tool.items()), len(tool))) for tool in turn.tools]


def json_keys_in_system(turn: Turn) -> None:
    """L3"""
    settings = {"language": "en", "currency": "EUR", "units": "metric", "audience": "public"}
    shuffled = dict(turn.rng.sample(list(settings.items()), len(settings)))
    turn.system = f"Settings: {json.dumps(shuffled)}\n" + turn.system


def tools_change(turn: Turn) -> None:
    """L4"""
    count = 2 + len(turn.history) // 2 % 3
    turn.tools = turn.tools[:count]


def history_cut(turn: Turn) -> None:
    """L5"""
    turn.history = turn.history[-4:]


def history_summarised(turn: Turn) -> None:
    """L5"""
    if len(turn.history) > 4:
        summary = "Summary: " + " ".join(turn.history[:-4])[:600]
        turn.history = [summary, "Understood.", *turn.history[-4:]]


def chunks_by_relevance(turn: Turn) -> None:
    """L6"""
    turn.rng.shuffle(turn.chunks)


def white_space(turn: Turn) -> None:
    """L7"""
    if turn.number % 3 == 1:
        turn.system = turn.system.replace("\n", "\r\n")
    elif turn.number % 3 == 2:
        turn.system = turn.system.replace("\n", "  \n", 1)


def unicode_form(turn: Turn) -> None:
    """L7"""
    quote = "\u2019" if turn.number % 2 else "'"
    turn.system = f"Don{quote}t guess what you do not know.\n" + turn.system


def examples_sampled(turn: Turn) -> None:
    """L10"""
    turn.examples = turn.rng.sample([*turn.examples], 4)


def examples_shuffled(turn: Turn) -> None:
    """L10"""
    turn.rng.shuffle(turn.examples)


def unique_text_first(turn: Turn) -> None:
    """L11"""
    report = " ".join(turn.rng.choice(WORDS) for _ in range(40)).capitalize()
    turn.system = f"The report to work on reads as follows, {report}\n" + turn.system


RAG_FAULTS: dict[Fault, str] = {
    timestamp_first: "L1",
    request_id_in_the_middle: "L1",
    tenant_in_system: "L2",
    user_field_first: "L2",
    tools_shuffled: "L3",
    keys_shuffled: "L3",
    json_keys_in_system: "L3",
    chunks_by_relevance: "L6",
    white_space: "L7",
    unicode_form: "L7",
    examples_sampled: "L10",
    examples_shuffled: "L10",
    unique_text_first: "L11",
}
CHAT_FAULTS: dict[Fault, str] = {
    timestamp_before_history: "L1",
    timestamp_first: "L1",
    tenant_in_system: "L2",
    tools_shuffled: "L3",
    tools_change: "L4",
    history_cut: "L5",
    history_summarised: "L5",
    white_space: "L7",
    unique_text_first: "L11",
}
RAW_FAULTS: dict[Fault, str] = {
    timestamp_first: "L1",
    request_id_in_the_middle: "L1",
    tenant_in_system: "L2",
    json_keys_in_system: "L3",
    chunks_by_relevance: "L6",
    white_space: "L7",
    examples_sampled: "L10",
    unique_text_first: "L11",
}
