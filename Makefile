# make help tells what there is. The set-up (a venv in .venv, pinned dependencies) is done by
# whatever needs it, once for each requirements.lock; nothing outside this folder is touched.

PYTHON ?= python3
PYTHONS ?= python3.11 python3.12 python3.13
VENV ?= .venv
BIN := $(VENV)/bin
ready := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo pipeline-demo test pythons check fmt crash soak mutants sweep model spin bench bench-peers docs lock clean

help: ## tell this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(ready) ## load files into three members, kill the leader meanwhile, check everything
	@$(BIN)/quorate demo $(ARGS)

pipeline-demo: $(ready) ## Spark follows a cluster that loses its leader, and then asks its logs
	@$(BIN)/python -m quorate.demo.spark $(ARGS)

test: $(ready) ## all tests, in two processes; ARGS="tests/cli -k status"
	@$(BIN)/python -m pytest --numprocesses 2 $(ARGS)

pythons: ## make test with each Python that is there; PYTHONS="/path/to/python3.13", ARGS as for test
	@for python in $(PYTHONS); do \
	  version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || \
	    { echo "There is no $$python."; continue; }; \
	  echo "Python $$version"; \
	  $(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv/$$version || exit 1; \
	done

check: $(ready) ## format, lint and types; changes nothing
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pyright

fmt: $(ready) ## format, and fix what the linter can fix
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

crash: $(ready) ## real members under kills, pauses, partitions and bad disks; ARGS="--seconds 600 --seed 7"
	@$(BIN)/quorate torture $(ARGS)

soak: $(ready) ## simulated storms from ever new seeds; HOURS=2 or SECONDS=600, ARGS="--first 7"
	@$(BIN)/python -m tests.simulation.soak $(if $(SECONDS),--seconds $(SECONDS),--hours $(or $(HOURS),0.2)) $(ARGS)

mutants: $(ready) ## what the simulation is worth: members with one rule taken out must be found
	@$(BIN)/python -m tests.simulation.mutants $(ARGS)

sweep: $(ready) ## simulated clusters on every broken network of 3 to 5 members, and some of 7
	@$(BIN)/python -m tests.simulation.sweep

model: $(ready) ## explore every state of the elector's model, larger than make test does
	@$(BIN)/python -m tests.model

spin: ## have SPIN check docs/model/elector.pml (Debian: apt install spin gcc)
	@docs/model/check.sh

bench: $(ready) ## all benches, their tables and plots, half an hour; ARGS=--quick
	@$(BIN)/python -m bench $(ARGS)

bench-peers: $(ready) ## the same beside etcd and RedisRaft, if found; ARGS="--redisraft FILE.so"
	@$(BIN)/python -m bench.runs.peers $(ARGS)

docs: $(VENV)/.docs ## the documentation site, in site/; fails at any warning or broken link
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

lock: ## pin the newest dependencies that pyproject.toml allows (needs uv)
	@uv pip compile --quiet --universal --generate-hashes --no-annotate --upgrade \
	  --python-version 3.11 --custom-compile-command 'make lock' \
	  pyproject.toml --group dev --extra pipeline --output-file requirements.lock
	@uv pip compile --quiet --universal --generate-hashes --no-annotate \
	  --python-version 3.11 --custom-compile-command 'make lock' \
	  pyproject.toml --group docs --constraint requirements.lock --output-file requirements-docs.lock

clean: ## remove everything that make has made
	rm -rf .venv build dist site .*_cache .hypothesis .coverage *.egg-info */_*.so */*/_*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(ready): requirements.lock pyproject.toml $(filter-out bench/%,$(wildcard *.c */*.c */*/*.c))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'quorate needs Python 3.11 or newer: make PYTHON=/path/to/python3.11'; exit 1; }
	@echo 'Setting up $(VENV), once.'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo 'Python has no venv module; on Debian: apt install python3-venv'; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@rm -rf quorate.egg-info  # both are of the time when the distribution was named so
	@$(BIN)/python -m pip uninstall --quiet --quiet --yes quorate
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.docs: requirements-docs.lock | $(ready)
	@echo 'Adding requirements-docs.lock to $(VENV), once.'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@
