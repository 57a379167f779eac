# Every target makes the virtual environment it needs: on a fresh machine with Python 3.11 or later, one command is
# enough. An environment is made anew only when a pyproject.toml changes.
#
#   PYTHON=python3.12   use this interpreter (in an environment of its own) instead of the newest that runs
#   VENV=path           where the environment is
#   JOBS=3              how many processes run tests side by side (0: none but pytest itself, as for a debugger)
#   PYTEST_ARGS="..."   passed on to pytest, BENCH_ARGS="..." to the benchmarks, MODELS_ARGS="..." to the models
#   PART=simulation     a part of the tests of `make test-all`; scripts/test_all.py lists them
#   LOG=path            a log for the demo to work on
#   STORY=coupons       a story for the demo to tell alone: statistics, coupons or push

PYTHON ?=
VENV ?= .venv$(if $(PYTHON),-$(notdir $(PYTHON)))
BIN = $(VENV)/bin
JOBS ?= auto
PYTEST_ARGS ?=
BENCH_ARGS ?=
SEEDS ?= 1000
ROUNDS ?= 20
SIM_ARGS ?=
MODELS_ARGS ?=
PART ?=
LOG ?=
STORY ?=

# Tests start hundreds of interpreters: each would compile what it imports anew if none might keep it.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL = help
.PHONY: help docs demo test test-all test-landing stress sim coverage lint format types models bench dist servers clean
.DELETE_ON_ERROR:

help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.installed-demo ## see it work, in three stories (LOG=path: on your own log; STORY=coupons: one of them)
	@$(BIN)/python -m demo $(if $(LOG),"$(LOG)") $(if $(STORY),--story "$(STORY)")

test: $(VENV)/.installed-dev servers ## run the tests that tell within minutes (PYTEST_ARGS="-k lock": some of them)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m change --junitxml=build/junit-test.xml $(PYTEST_ARGS)

test-all: $(VENV)/.installed-dev servers ## run every test there is (PART=simulation: a part; PYTEST_ARGS as above)
	JOBS=$(JOBS) SEEDS=$(SEEDS) $(BIN)/python -m scripts.test_all $(addprefix --part ,$(PART)) $(PYTEST_ARGS)

test-landing: $(VENV)/.installed-dev servers # what `.ci/run` adds to `make test`
	JOBS=$(JOBS) SEEDS=$(SEEDS) $(BIN)/python -m scripts.test_all --landing $(PYTEST_ARGS)

stress: $(VENV)/.installed-dev servers ## run the tests of `make test` that do not only compute ROUNDS=20 times, on a busy machine
	$(BIN)/python -m scripts.stress --rounds $(ROUNDS) -- \
		$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "change and not simulation and not rules" $(PYTEST_ARGS)

sim: $(VENV)/.installed-dev ## simulate the protocol on fresh seeds (SEEDS=5000 a scenario, SIM_ARGS="--scenario wire")
	@$(BIN)/python -m simulation --seeds $(SEEDS) $(SIM_ARGS)

coverage: $(VENV)/.installed-dev servers ## run the tests and say which lines they never reach
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(PYTEST_ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: $(VENV)/.installed-dev ## check style and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev ## put the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1
types: $(VENV)/.installed-dev ## check types with mypy and pyright, both strict
	$(BIN)/mypy --strict $(wildcard src packages tests simulation models bench demo examples scripts)
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/.installed-dev ## build the site of the documentation into build/docs, with warnings as errors
	$(BIN)/sphinx-build -W --keep-going --jobs auto docs build/docs

models: $(VENV)/.installed-dev ## check the models of the protocol with Spin (MODELS_ARGS="--long --stories")
	$(BIN)/python -m models.run $(MODELS_ARGS)

bench: $(VENV)/.installed-bench servers ## run the benchmarks
	$(BIN)/python -m bench.peers.apart
	$(BIN)/python -m bench $(BENCH_ARGS)

dist: $(VENV)/.installed-dev ## build both packages, and check them
	rm -rf dist
	for package in . packages/testing; do (cd $$package && $(abspath $(BIN))/python -m hatchling build -d "$(CURDIR)/dist") || exit; done
	$(BIN)/python -m twine check --strict dist/*

servers: # what the tests start, if this machine lacks it and it may be installed
	@sh scripts/servers.sh

clean: ## remove environments, caches and build results
	rm -rf .venv .venv-* build dist .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.installed-%: pyproject.toml packages/testing/pyproject.toml scripts/venv.sh
	@PYTHON="$(PYTHON)" sh scripts/venv.sh "$(VENV)" "$*"
	@touch $@
