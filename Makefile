# `make demo` and `make test` set up what they need in .venv and run; nothing else is installed or changed.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: demo test check test-slow test-all clean

demo: $(VENV)/installed
	rm -rf demo
	$(BIN)/whalefl compare digits --methods fedavg,heterofl,whale --seeds 0,1 --out demo

test: check
	$(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal -m "not slow and not netns"

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-slow: $(VENV)/installed
	$(BIN)/pytest -m "slow or netns"

test-all: test test-slow

$(VENV)/installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "whalefl needs Python 3.11 or newer: make PYTHON=/path/to/python3"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev,flower]'
	touch $@

clean:
	rm -rf $(VENV) demo
