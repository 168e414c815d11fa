"""Workloads: who asks for what, and when."""

from testbed.workloads.arrivals import (
    AllAtOnce,
    Arrivals,
    ConstantArrivals,
    GammaArrivals,
    PoissonArrivals,
    Retimed,
    TimedArrivals,
    TraceArrivals,
)
from testbed.workloads.data_folder import data_folder, find_data_file
from testbed.workloads.synthetic import (
    Client,
    DrawnLengthsWorkload,
    LengthsWorkload,
    LessonWorkload,
    MultiClientWorkload,
    Phase,
    RagWorkload,
    Segment,
)
from testbed.workloads.traces import MooncakeTrace
from testbed.workloads.workload import Workload

__all__ = [
    "AllAtOnce",
    "Arrivals",
    "Client",
    "ConstantArrivals",
    "DrawnLengthsWorkload",
    "GammaArrivals",
    "LengthsWorkload",
    "LessonWorkload",
    "MooncakeTrace",
    "MultiClientWorkload",
    "Phase",
    "PoissonArrivals",
    "RagWorkload",
    "Retimed",
    "Segment",
    "TimedArrivals",
    "TraceArrivals",
    "Workload",
    "data_folder",
    "find_data_file",
]
