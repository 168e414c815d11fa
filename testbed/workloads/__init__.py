"""Workloads: who asks for what, and when."""

from testbed.workloads.arrivals import (
    AllAtOnce,
    Arrivals,
    ClosedLoopArrivals,
    ConstantArrivals,
    GammaArrivals,
    PoissonArrivals,
    Retimed,
    TimedArrivals,
    TraceArrivals,
)
from testbed.workloads.data_folder import data_folder, find_data_file
from testbed.workloads.file_workload import FileWorkload
from testbed.workloads.synthetic import (
    Client,
    DrawnLengthsWorkload,
    FittedWorkload,
    LengthsWorkload,
    LessonWorkload,
    MultiClientWorkload,
    Phase,
    RagWorkload,
    Segment,
)
from testbed.workloads.template_segments import TemplateSegment
from testbed.workloads.templates import TemplateWorkload
from testbed.workloads.traces import MooncakeTrace
from testbed.workloads.workload import ProgramWorkload, Workload

__all__ = [
    "AllAtOnce",
    "Arrivals",
    "Client",
    "ClosedLoopArrivals",
    "ConstantArrivals",
    "DrawnLengthsWorkload",
    "FileWorkload",
    "FittedWorkload",
    "GammaArrivals",
    "LengthsWorkload",
    "LessonWorkload",
    "MooncakeTrace",
    "MultiClientWorkload",
    "Phase",
    "PoissonArrivals",
    "ProgramWorkload",
    "RagWorkload",
    "Retimed",
    "Segment",
    "TemplateSegment",
    "TemplateWorkload",
    "TimedArrivals",
    "TraceArrivals",
    "Workload",
    "data_folder",
    "find_data_file",
]
