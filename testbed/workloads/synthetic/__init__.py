"""Made-up traffic, one file a family; every generator is a frozen dataclass and a Workload."""

from testbed.workloads.synthetic.clients import Client, MultiClientWorkload
from testbed.workloads.synthetic.fitted import FittedWorkload
from testbed.workloads.synthetic.lengths import DrawnLengthsWorkload, LengthsWorkload
from testbed.workloads.synthetic.lesson import LessonWorkload, Segment
from testbed.workloads.synthetic.phases import Phase
from testbed.workloads.synthetic.rag import RagWorkload

__all__ = [
    "Client",
    "DrawnLengthsWorkload",
    "FittedWorkload",
    "LengthsWorkload",
    "LessonWorkload",
    "MultiClientWorkload",
    "Phase",
    "RagWorkload",
    "Segment",
]
