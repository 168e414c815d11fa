"""Rules that every policy must keep, checked on adversarial workloads.

from testbed.conformance import check_policy

def test_my_policy() -> None:
    check_policy(MyPolicy, alpha=0.3)
"""

from testbed.conformance.case import Case, tokens
from testbed.conformance.kit import (
    CHECKS,
    HORIZON,
    ConformanceError,
    Finding,
    Report,
    check_policy,
    examine,
    recheck,
    subject_of,
)

__all__ = [
    "CHECKS",
    "HORIZON",
    "Case",
    "ConformanceError",
    "Finding",
    "Report",
    "check_policy",
    "examine",
    "recheck",
    "subject_of",
    "tokens",
]
