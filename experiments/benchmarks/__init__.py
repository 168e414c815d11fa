"""Benchmarks that measure the product and a named peer in one run, and hold a bar.

`python -m experiments.benchmarks` lists them; each, run by name, prints its ratio and bar last and
exits 1 below the bar.
"""
