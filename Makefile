# Everything a newcomer needs: `make demo` and `make test`. Both build .venv from requirements.lock first.
PYTHON ?= python3
ORDERS ?= 3000
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COMPILE := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --quiet

.DEFAULT_GOAL := help

help: ## Show what each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 1; }
	@echo "Building $(VENV) from requirements.lock: half a minute or so"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

install: $(READY) ## Build .venv from the lock file

demo: $(READY) ## Orders placed here arrive over there, processes killed on the way (ORDERS=100000 for more)
	$(BIN)/counterfoil demo --orders $(ORDERS)

test: lint ## Run all checks and tests (real PostgreSQL; real Apache Kafka where Java is)
	$(BIN)/python -m pytest

lint: $(READY) ## Style, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY) ## Measure against baselines in interleaved runs
	$(BIN)/python -m tests.benchmarks

chaos: $(READY) ## Break everything for minutes, then count (MINUTES=5 SEED=7 to repeat a plan; needs Java and Maven)
	MINUTES=$(MINUTES) SEED=$(SEED) $(BIN)/python -m tests.chaos

lock: ## Renew both lock files from pyproject.toml (needs uv)
	$(COMPILE) --upgrade --group dev --output-file requirements.lock
	$(COMPILE) --constraint requirements.lock --output-file requirements-runtime.lock

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info

.PHONY: help install demo test lint bench chaos lock clean
