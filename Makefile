# Each target makes its own virtual environment in .venv on first use: on a fresh machine
# `make demo` or `make test` is the only command typed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test bench confusion lint format clean

demo: $(STAMP)
	$(BIN)/steptally demo

test: $(STAMP)
	$(BIN)/python -m pytest

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Real faults in real runs, and what they are called: a table, half an hour or more.
confusion: $(STAMP)
	$(BIN)/python -m tests.confusion

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# torch's version is fixed here, not in pyproject.toml: users on GPUs keep the torch they have.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "steptally needs Python 3.11 or newer, got " + sys.version.split()[0] + ": run make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch 2.13.0 and the rest into $(VENV) (over 1 GB; some minutes, once)"
	@$(BIN)/python -m pip install --quiet torch==2.13.0
	@$(BIN)/python -m pip install --quiet --editable '.[engine,dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
