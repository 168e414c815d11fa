# Every target sets itself up in .venv from a bare Python; a second run starts at once.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The engine has an environment of its own: torch is many times the size of everything else.
ENGINE := .venv-engine
TORCH ?= torch==2.13.0

# Slow tests that every change must pass; they share a trained model, so one process runs them.
ON_SMOLLM2 := tests/engine/test_smollm2_tokens.py tests/engine/test_serve_page.py
ENGINE_TESTS := tests/engine tests/kernels tests/experiments/gpu

.PHONY: demo demo-engine test test-engine check extras slow slow-engine docs notebooks

demo: $(VENV)/.installed
	$(BIN)/python -m experiments.demo
	@printf '\nThe same schedulers on a real model (make demo-engine):\n'
	@$(MAKE) --no-print-directory demo-engine

demo-engine: $(ENGINE)/.installed
	@$(ENGINE)/bin/python -m experiments.demo_engine

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto

test-engine: $(ENGINE)/.installed
	OMP_NUM_THREADS=1 $(ENGINE)/bin/python -m pytest -n auto $(ENGINE_TESTS)
	OMP_NUM_THREADS=1 $(ENGINE)/bin/python -m pytest -m slow $(ON_SMOLLM2)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	MYPYPATH=.:kernels $(BIN)/mypy hydra_plugins/resuming_sweeper.py
	$(BIN)/python -m pytest tests/test_architecture.py

extras: $(VENV)/.installed-extras

slow: $(VENV)/.installed-extras
	$(BIN)/python -m pytest -m "slow or peer"

slow-engine: $(ENGINE)/.installed-peers
	OMP_NUM_THREADS=1 $(ENGINE)/bin/python -m pytest -m "slow or peer" $(ENGINE_TESTS)

docs: $(VENV)/.installed-extras
	$(BIN)/mkdocs build --strict

notebooks: $(VENV)/.installed-extras
	$(BIN)/python -m pytest tests/notebooks

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(ENGINE)/.installed: pyproject.toml
	@echo 'Setting up $(ENGINE) with $(TORCH) and transformers, once; this takes minutes.'
	$(PYTHON) -m venv $(ENGINE)
	$(ENGINE)/bin/python -m pip install --disable-pip-version-check $(TORCH)
	$(ENGINE)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[engine,dev]"
	touch $@

# What transformers reads GGUF files with: our conversion is held against its own.
$(ENGINE)/.installed-peers: $(ENGINE)/.installed
	$(ENGINE)/bin/python -m pip install --quiet --disable-pip-version-check gguf accelerate
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable ".[dev,sweeps,tokenizer]"
	touch $@

# What the other tests need, which are skipped without it: a gigabyte, most of it Ray and a browser.
$(VENV)/.installed-extras: $(VENV)/.installed-dev
	$(PIP) --editable ".[browser,docs,notebooks,ray,sweeps]"
	touch $@
