# Every target sets itself up in .venv from a bare Python; a second run starts at once.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test check slow

demo: $(VENV)/.installed
	$(BIN)/python -m experiments.demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "slow or peer"

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable ".[dev]"
	touch $@
