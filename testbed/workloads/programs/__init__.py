"""Ready programs: the LM programs that papers measure, one file a family."""

from testbed.workloads.programs.agents import AgentCall, GenerativeAgentPrograms, ReActPrograms
from testbed.workloads.programs.chat import ChatPrograms
from testbed.workloads.programs.extraction import JsonPrograms
from testbed.workloads.programs.family import (
    ProgramFamily,
    Script,
    SharedTexts,
    Turn,
    ask,
    fork_join,
)
from testbed.workloads.programs.few_shot import ChoicePrograms, FewShotPrograms
from testbed.workloads.programs.judge import JudgePrograms
from testbed.workloads.programs.rag import RagPrograms
from testbed.workloads.programs.reasoning import (
    SelfConsistencyPrograms,
    SkeletonOfThoughtPrograms,
    TreeOfThoughtPrograms,
)
from testbed.workloads.programs.single import SingleShotPrograms, VoicePrograms

__all__ = [
    "AgentCall",
    "ChatPrograms",
    "ChoicePrograms",
    "FewShotPrograms",
    "GenerativeAgentPrograms",
    "JsonPrograms",
    "JudgePrograms",
    "ProgramFamily",
    "RagPrograms",
    "ReActPrograms",
    "Script",
    "SelfConsistencyPrograms",
    "SharedTexts",
    "SingleShotPrograms",
    "SkeletonOfThoughtPrograms",
    "TreeOfThoughtPrograms",
    "Turn",
    "VoicePrograms",
    "ask",
    "fork_join",
]
