"""Exact cases from independent implementations, run through the testbed's own cache and scheduler.

`python -m tests.cases [DIR]` runs every case file of a folder; see folder.py for what that means.
"""
