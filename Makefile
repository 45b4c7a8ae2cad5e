# `make help` lists the targets. A target that needs packages installs them into .venv first, once for
# each lock file: requirements.lock to run quorate, requirements-pipeline.lock for Spark,
# requirements-dev.lock for tests and checks, requirements-docs.lock for the documentation site.
# Nothing outside of this folder is changed.

PYTHON ?= python3
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# Stamps: each is newer than what it was made from.
run := $(VENV)/.run
pipeline := $(VENV)/.pipeline
dev := $(VENV)/.dev
docs := $(VENV)/.docs

# The tests start Python several hundred times, and each start would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

# One process takes the tests that start members, one those of Spark, and all take the rest.
PYTEST := $(BIN)/python -m pytest --numprocesses 3
# No clusters of processes, no Spark, no storms: what is worth running after every edit.
QUICK := transport keyvalue/commands keyvalue/port keyvalue/protocol keyvalue/state histories cli \
  documents node/protocol node/follower

.DEFAULT_GOAL := help
.PHONY: help demo pipeline-demo patroni-demo quick test test-all pythons check types-by-pyright types-by-mypy fmt crash soak mutants sweep model spin bench bench-peers picture docs etcd-messages wheel lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(run) ## load files into three members, kill the leader, check every reply
	@$(BIN)/quorate demo $(ARGS)

pipeline-demo: $(pipeline) ## Spark follows a cluster that loses its leader, then queries its logs
	@$(BIN)/python -m quorate.demo.spark $(ARGS)

patroni-demo: $(run) ## PostgreSQL under Patroni on quorate, and all that can break (needs both installed)
	@$(BIN)/python -m quorate.demo.patroni $(ARGS)

quick: $(dev) ## the tests that need no processes, in under a minute
	@$(PYTEST) -m "not slow and not spark" $(QUICK:%=tests/%) $(ARGS)

test: $(dev) $(pipeline) ## all tests that are not marked slow; ARGS="tests/cli -k status"
	@$(PYTEST) -m "not slow" $(ARGS)

test-all: $(dev) $(pipeline) ## all tests, the slow ones included
	@$(PYTEST) $(ARGS)

pythons: ## make test with every Python found; PYTHONS="/path/to/python3.13", ARGS as for test
	@for python in $(PYTHONS); do \
	  version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || \
	    { echo "There is no $$python."; continue; }; \
	  echo "Python $$version"; \
	  $(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv/$$version || exit 1; \
	done

check: $(dev) $(pipeline) ## format, lint, layers and types; changes nothing
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-cache
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types-by-pyright types-by-mypy

# Each takes one processor, so they run at the same time, see check.
types-by-pyright:
	@$(BIN)/pyright

types-by-mypy:
	@$(BIN)/mypy
	@$(BIN)/python -m tests.support.public_types

fmt: $(dev) ## format, and fix what the linter can fix
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

crash: $(run) ## real members under kills, pauses, partitions and bad disks; ARGS="--seconds 600 --seed 7"
	@$(BIN)/quorate torture $(ARGS)

soak: $(dev) ## simulated storms from new seeds; HOURS=2 or SECONDS=600, ARGS="--first 7"
	@$(BIN)/python -m tests.simulation.soak $(if $(SECONDS),--seconds $(SECONDS),--hours $(or $(HOURS),0.2)) $(ARGS)

mutants: $(dev) ## remove one rule from a member, many times: the simulation must find each
	@$(BIN)/python -m tests.simulation.mutants $(ARGS)

sweep: $(dev) ## simulated clusters on every broken network of 3 to 5 members, and some of 7
	@$(BIN)/python -m tests.simulation.sweep

model: $(dev) ## explore every state of the election model, larger than make test does
	@$(BIN)/python -m tests.model

spin: ## have SPIN check docs/model/elector.pml (Debian: apt install spin gcc)
	@docs/model/check.sh

bench: $(dev) $(pipeline) ## all benches, their tables and plots, an hour; ARGS=--quick
	@$(BIN)/python -m bench $(ARGS)

bench-peers: $(dev) $(pipeline) ## the same, compared with etcd and RedisRaft, if found; ARGS="--redisraft FILE.so"
	@$(BIN)/python -m bench.runs.peers $(ARGS)

docs: $(docs) ## the documentation site, in site/; fails at any warning or broken link
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

etcd-messages: ## compile etcd/messages/rpc.proto (needs uv)
	@uv run --quiet --no-project --with grpcio-tools==1.85.1 --with mypy-protobuf==5.1.0 \
	  python -m grpc_tools.protoc \
	  -I etcd/messages --python_out=etcd/messages --mypy_out=etcd/messages etcd/messages/rpc.proto

picture: $(dev) ## the picture at the top of README.md: a real cluster, in Chromium
	@$(BIN)/python -m tests.web.picture

wheel: $(run) ## build a wheel with the compiled parts for this Python, in dist/
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .

# The later locks are constrained by the earlier ones: a package has one version in all of them.
LOCK := uv pip compile --quiet --universal --generate-hashes --no-annotate --upgrade \
  --python-version 3.11 --custom-compile-command 'make lock' pyproject.toml

lock: ## pin the newest dependencies that pyproject.toml allows (needs uv)
	@$(LOCK) --group build --extra certs --output-file requirements.lock
	@$(LOCK) --extra pipeline --constraint requirements.lock --output-file requirements-pipeline.lock
	@$(LOCK) --group dev --constraint requirements.lock --constraint requirements-pipeline.lock \
	  --output-file requirements-dev.lock
	@$(LOCK) --group docs --constraint requirements.lock --constraint requirements-dev.lock \
	  --output-file requirements-docs.lock

clean: ## remove everything that make has made
	rm -rf .venv build dist site .*_cache .hypothesis .coverage *.egg-info */_*.so */*/_*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(run): requirements.lock pyproject.toml $(filter-out bench/%,$(wildcard *.c */*.c */*/*.c))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'quorate needs Python 3.11 or newer: make PYTHON=/path/to/python3.11'; exit 1; }
	@echo 'Installing quorate into $(VENV), once.'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo 'Python has no venv module; on Debian: apt install python3-venv'; exit 1; }
	@$(PIP) install --no-deps --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# $(VENV)/.dev is made from requirements-dev.lock, and so on.
$(VENV)/.%: requirements-%.lock | $(run)
	@echo 'Adding requirements-$*.lock to $(VENV), once.'
	@$(PIP) install --no-deps --require-hashes -r $<
	@touch $@
