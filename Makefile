# Every target sets up its own environment in .venv and installs only what changed.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP := $(BIN)/pip install --quiet
STAMP := $(VENV)/.installed

.PHONY: demo test test-system torture bench lint clean
.DEFAULT_GOAL := test

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) is not on PATH. Install it (Debian: apt-get install python3.11 python3.11-venv),"; \
	  echo "or name another Python from 3.11 on: make PYTHON=python3 $(MAKECMDGOALS)"; exit 2; } >&2
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(BIN)/python pyproject.toml constraints.txt
	$(PIP) torch numpy
	$(PIP) -e '.[test,lint]'
	touch $@

demo: $(STAMP) ## train, kill -9 mid-epoch, resume, compare bit for bit
	$(BIN)/holdfast demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint ## everything that needs no system packages
	$(BIN)/python -m pytest -m "not torture and not system" -q -n 2 --dist loadfile

test-system: $(STAMP) ## what needs root or Debian packages; installs them where it may
	sh tests/system/install_packages.sh
	$(BIN)/python -m pytest -m system -q

torture: $(STAMP) ## long soaks: thousands of kills, crash states and flipped bits
	rm -f runs/counts && mkdir -p runs
	HOLDFAST_TORTURE=1 HOLDFAST_COUNTS=$(CURDIR)/runs/counts $(BIN)/python -m pytest -m "torture or not system" -q
	$(BIN)/python tests/laboratory/write_counts.py runs/counts

bench: $(STAMP) ## against torch.save, safetensors, DCP, torch_checkpointing and the raw limits
	$(BIN)/python benchmarks/run_all.py

clean:
	rm -rf $(VENV) .venv-bench .pytest_cache .mypy_cache .ruff_cache
