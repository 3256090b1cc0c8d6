# `make demo`, `make test`, `make docs` and `make dist` set everything up themselves; they need only Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.dev
DIST := $(VENV)/dist
AUDIT := $(VENV)/audit
WORKERS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 ))) # some tests mostly wait
# Without bytecode, each of the processes that tests start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10
REST := lab or world or site or real

PAGE := wima/report/web
NODE := $(shell command -v node 2>/dev/null)
ESLINT_VERSION := 10.14.0
ESLINT := $(VENV)/eslint-$(ESLINT_VERSION)
# The browser's globals that the report's page uses; all other names must be declared.
BROWSER := addEventListener,document,getComputedStyle,getSelection,IntersectionObserver,matchMedia,navigator,requestAnimationFrame,ResizeObserver,window

.PHONY: demo test test-all coverage docs lint lint-js notebooks audit dist clean

demo: $(READY)
	$(BIN)/wima demo

# All that a change is likely to break, in some minutes.
test: $(DEV) lint
	$(PYTEST) -m "not ($(REST))"

# What `make test` leaves out: laboratories, frameworks, the site, real data.
test-all: $(DEV) lint-js
	$(PYTEST) -m "$(REST)"

coverage: $(DEV)
	$(PYTEST) --cov --cov-report=term

docs: $(DEV)
	$(BIN)/mkdocs build --strict
	@echo "Open build/site/index.html"

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.budget

ifdef NODE
lint-js: $(ESLINT)/.tried
	@for file in $(PAGE)/*.js; do echo "node --check $$file"; node --check $$file || exit 1; done
	@# The files become one script. ESLint's exit code 1 is a finding; if it cannot run, that is not a failure.
	@if [ -x $(ESLINT)/node_modules/.bin/eslint ]; then \
		echo "eslint $(PAGE)/*.js"; \
		cat $(PAGE)/*.js | $(ESLINT)/node_modules/.bin/eslint --stdin --no-config-lookup \
			--global $(BROWSER) --rule no-undef:2 --rule no-unused-vars:2 || [ $$? -ne 1 ]; \
	fi
else
lint-js:
	@echo "node is not installed: the JavaScript of reports is not checked."
endif

notebooks: $(DEV)
	$(BIN)/python -m tests.helpers.notebooks

# Says so, and does not fail, where the network cannot be reached.
audit:
	@test -d $(AUDIT) || $(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/python -m pip install -q --retries 1 "pip-audit>=2.7,<3" || true
	$(AUDIT)/bin/python -m tests.audit $(AUDIT)/bin/pip-audit

dist: $(DIST)/.ready
	rm -rf dist
	$(DIST)/bin/python -m build
	$(DIST)/bin/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "wima needs Python 3.11 or newer, got $$($(PYTHON) --version); set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	touch $@

$(DEV): $(READY)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@

# A separate environment, because building a release needs none of wima's dependencies.
$(DIST)/.ready: constraints.txt
	$(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip install -q -c constraints.txt build twine
	touch $@

# Tried once, so that nobody waits for a missing network; remove the folder to try again.
$(ESLINT)/.tried: | $(READY)
	@mkdir -p $(ESLINT)
	@npm install --prefix $(ESLINT) --no-save --no-fund --no-audit --ignore-scripts --fetch-retries=0 \
		--fetch-timeout=10000 eslint@$(ESLINT_VERSION) >$(ESLINT)/npm.log 2>&1 || \
		echo "ESLint could not be installed (see $(ESLINT)/npm.log): undeclared names are not checked."
	@touch $@
