# `make demo` and `make test` set everything up by themselves; nothing else is needed but Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 ))) # some tests mostly wait

.PHONY: demo test lint clean

demo: $(READY)
	$(BIN)/wima demo

test: $(READY) lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "wima needs Python 3.11 or newer, got $$($(PYTHON) --version); set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $(READY)
