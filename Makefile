# Every target makes its own virtual environment first, and reuses it until pyproject.toml, the constraints or the place
# of this folder change.  PYTHON=python3.12 chooses another interpreter; ARGS="…" is passed on to demo, test, soak and
# bench.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
digest = $(shell ($(1)) | sha256sum | cut -c1-16)
MADE := $(VENV)/made-$(call digest,echo "$(CURDIR)"; $(PYTHON) --version)
READY := $(VENV)/ready-$(call digest,cat pyproject.toml deploy/constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help demo test test-long check soak bench screenshot environment clean

help:
	@echo "make demo         train a small GPT in six processes while workers are killed under it"
	@echo "make test         run all tests but the long ones (ARGS='-k name' chooses)"
	@echo "make test-long    run the long ones"
	@echo "make check        lint, format, types, import rules"
	@echo "make soak         ten minutes of faults on a job of three nodes (ARGS='--minutes 1')"
	@echo "make bench        measure gaps, goodput, checkpoints, overhead and reinit"
	@echo "make screenshot   take the README's pictures of the page (needs chromium; best with fonts-inter)"
	@echo "make environment  only make $(VENV)"
	@echo "make clean        remove $(VENV) and the caches"

demo: $(READY)
	$(BIN)/reknit demo $(ARGS)

# Most of what takes long waits for something: so four at a time, whatever the number of cores, a module by one of them,
# in the order of tests/conftest.py.
test: $(READY)
	$(BIN)/python -m pytest -n 4 --dist loadscope --no-loadscope-reorder $(ARGS)

test-long: $(READY)
	$(BIN)/python -m pytest -m long --timeout=3600 $(ARGS)

check: $(READY)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

soak: $(READY)
	$(BIN)/python -m tests.soak $(ARGS)

bench: $(READY)
	$(BIN)/python tests/bench $(ARGS)

screenshot: $(READY)
	$(BIN)/python -m tests.screenshots

environment: $(READY)

# The stamps are written last: an installation that was interrupted is taken up again by the next call.
$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "reknit needs Python 3.10 or newer, and $(PYTHON) is not: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments: install python3-venv (or the like)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(READY): $(MADE)
	@rm -f $(VENV)/ready-*
	$(BIN)/python -m pip install --quiet --constraint deploy/constraints.txt --editable '.[all]' --group dev
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
