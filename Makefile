# Two commands do all the set-up on a fresh machine with Python (3.11 to 3.13) and make:
#   make quickstart    makes .venv, installs, runs docs/examples/quickstart.py
#   make test          makes .venv, installs, runs the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart test check format fuzz fuzz-bytes campaign mutants compat pythons clean

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

# Random programs against the model (docs/testing.md), on the engine and on the saver: the steps for each storage and index, and a
# seed to repeat a run.
STEPS ?= 20000
SEED ?=

fuzz: $(VENV)/installed
	$(BIN)/python -m tests.model.fuzz --steps $(STEPS) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.langgraph.fuzz --steps $(STEPS) $(if $(SEED),--seed $(SEED))

# Hostile bytes, with coverage guidance: the seconds for all decoders, and a seed to repeat a run. Writes docs/results/fuzz-bytes.json.
SECONDS ?= 300

fuzz-bytes: $(VENV)/installed
	$(BIN)/python -m tests.hostile.fuzzing --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) --result docs/results/fuzz-bytes.json

# Breaks the code behind each promise of docs/guarantees.md, and sees that the tests which it names notice; ONLY=name for one of them.
mutants: $(VENV)/installed
	$(BIN)/python -m tests.mutants.run -j 2 $(ONLY)

# The branch scenarios on the oldest versions of LangGraph that are supported, each in an environment of its own.
COMPAT := 1.2.9 1.2.12

.venvs/langgraph-%/installed: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --editable . pytest 'langgraph==$*' 'langgraph-checkpoint>=4.3,<4.4'
	touch $@

compat: $(COMPAT:%=.venvs/langgraph-%/installed)
	@for version in $(COMPAT); do \
	  echo "langgraph $$version"; .venvs/langgraph-$$version/bin/python -m pytest tests/langgraph/test_branches.py || exit 1; \
	done

# The tests on the other versions of Python, where these are installed: on the path, or under pyenv.
PYTHONS ?= $(foreach v,3.12 3.13,$(firstword \
  $(shell python$(v) --version >/dev/null 2>&1 && echo python$(v)) $(wildcard $(HOME)/.pyenv/versions/$(v).*/bin/python$(v))))

pythons:
	@for python in $(PYTHONS); do \
	  echo "$$($$python --version)"; $(MAKE) test PYTHON=$$python VENV=.venvs/$$(basename $$python) || exit 1; \
	done

# Kills, power cuts and bit flips at every fault point; writes docs/survival.md. About five minutes a round on two cores.
ROUNDS ?= 4

campaign: $(VENV)/installed
	$(BIN)/python -m tests.campaigns.campaign --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

clean:
	rm -rf $(VENV) .venvs
