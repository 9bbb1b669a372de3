# Every target works alone and first on a fresh Debian 12 with python3 and make; a second run
# starts at once. The virtual environment is .venv; delete it or `make clean` to start over.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A module or script named here is run by these targets; see README.md.
PYTEST := $(BIN)/python -m pytest
# Most of a test's time is waiting for processes, leases and an emulated WAN.
SIDE_BY_SIDE := -n 3 --dist worksteal

.PHONY: demo test check bench bench-sim soak test-clients install clean

demo: $(STAMP)
	$(BIN)/hubspoke demo

test: $(STAMP)
	@sh .ci/have-fuse
	$(PYTEST) $(SIDE_BY_SIDE)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(STAMP)
	$(BIN)/python bench/reference_job.py

# All workloads at full size: most of an hour on two cores.
bench-sim: $(STAMP)
	$(BIN)/hubspoke simulate --plot out/simulate

soak: $(STAMP)
	@sh .ci/have-fuse
	$(PYTEST) -m soak

test-clients: $(STAMP)
	$(PYTEST) --override-ini='addopts=-q --import-mode=importlib -p no:cacheprovider' tests/clients

install: $(STAMP)

$(STAMP): pyproject.toml
	@sh .ci/make-venv "$(PYTHON)" $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[lab,dev]'
	@touch $@

clean:
	rm -rf $(VENV) .venvs .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
