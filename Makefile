# Needs Python 3.11 or newer with pip, and nothing else.  Another interpreter: make PYTHON=/path/to/python3.12
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
PYTEST_ARGS ?= -n auto --maxprocesses 4

.DEFAULT_GOAL := help
.PHONY: help solve test lint clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

solve: $(VENV)/.installed ## write, check and time an rmsnorm kernel without any model (costs nothing)
	@$(BIN)/nkiwright solve rmsnorm --model autoschedule

test: $(VENV)/.installed-dev ## run the fast tests
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev ## check style, types and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "make: needs Python 3.11 or newer; found $$(python3 --version 2>&1 || true). Install it or run 'make PYTHON=/path/to/python3.12'" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: needs Python 3.11 or newer; $(PYTHON) is not" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) has no venv or ensurepip; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml
	@echo "installing nkiwright into $(VENV)"
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml
	@echo "installing nkiwright and its test tools into $(VENV)"
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed
