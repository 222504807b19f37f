# Two commands do all the set-up on a fresh machine with Python (3.11 to 3.13) and make:
#   make quickstart    makes .venv, installs, runs docs/examples/quickstart.py
#   make test          makes .venv, installs, runs the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart test check format compat pythons clean

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

quickstart: $(VENV)/installed
	$(BIN)/python docs/examples/quickstart.py

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy -p langgraph.checkpoint.ckptstore

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venvs
