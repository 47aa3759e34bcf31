# Two commands for a fresh machine with Python 3.11, make and git:
#   make quickstart   build specs/minilm.yaml and say where the report is
#   make test         run all tests
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN = $(VENV)/bin
INPUTS = pyproject.toml specs/requirements.txt tests/requirements.txt
PIP = $(BIN)/python -m pip --disable-pip-version-check

.PHONY: quickstart test test-fast lint house clean

quickstart: $(VENV)/.installed
	$(BIN)/megacompile build specs/minilm.yaml

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

test-fast: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/house.py --check
	$(BIN)/megacompile plan specs/*.yaml > /dev/null

house: $(VENV)/.installed-dev
	$(BIN)/python .ci/house.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python $(INPUTS)
	$(PIP) install -q -e ".[all]"
	$(PIP) install -q --no-deps --require-hashes -r specs/requirements.txt
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install -q -e ".[dev]"
	$(PIP) install -q --no-deps --require-hashes -r tests/requirements.txt
	$(PIP) install -q --no-deps --upgrade --target $(VENV)/triton-python numpy==1.26.4
	touch $@

clean:
	rm -rf build $(VENV)
