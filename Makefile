# Two commands for a fresh clone: make gs1, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: gs1 test lint types lock clean

gs1: $(STAMP)
	$(BIN)/python -m pytest experiments/test_gs1.py

test: $(STAMP) lint types
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# resolves the ranges of pyproject.toml anew, in an environment of its own
lock:
	./.ci/lock $(PYTHON)

clean:
	rm -rf $(VENV) runs
