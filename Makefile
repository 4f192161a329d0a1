# Two commands for a fresh clone: make gs1, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# what tests need: compiled modules for their many processes, nothing of a developer's own service or data, and no proxy before loopback
TESTED := env -u PYTHONDONTWRITEBYTECODE -u TINKER_BASE_URL -u TINKER_API_KEY -u HARNESS_RUNS_DIR -u HARNESS_GSM8K_DIR \
	-u HARNESS_SEC_DIR TINKER_TELEMETRY=0 NO_PROXY=127.0.0.1,localhost

.PHONY: gs1 test test-cpus lint types lock clean

gs1: $(STAMP)
	$(BIN)/python -m pytest experiments/test_gs1.py

test: $(STAMP) lint types
	$(TESTED) $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# what rests on equal bits, under other kernels and numbers of threads: a table
test-cpus: $(STAMP)
	$(TESTED) $(BIN)/python tests/cpus.py

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
