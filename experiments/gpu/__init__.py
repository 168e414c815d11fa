"""Measurements that need a GPU: `python -m experiments.gpu`; see __main__."""
