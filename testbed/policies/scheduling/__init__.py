"""Scheduling policies: which waiting sequence is admitted next."""
