"""The figures of a paper, each from its experiments with one command."""
