"""Traffic that others recorded: the formats that are read, and those that are written."""

from testbed.workloads.formats.reader import FORMATS, RecordReader, read_records
from testbed.workloads.formats.record import PROMPT, TOOL, Record, RecordSegment

__all__ = ["FORMATS", "PROMPT", "TOOL", "Record", "RecordReader", "RecordSegment", "read_records"]
