# Commands for developers. The first one that you run creates .venv.
.DEFAULT_GOAL := help
.PHONY: help demo quick test soak bench costs docs lock clean check java generator servers kernels
MAKEFLAGS += --no-print-directory

VENV := .venv
READY := $(VENV)/.installed
CLASSES := $(VENV)/spark-classes.jsa $(VENV)/kafka-classes.jsa
BIN := $(VENV)/bin
# Outside the checkout, so that a second clone starts with what the first one has computed.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/holdfast
TOOLS := $(CACHE)/tools-$(shell sha256sum requirements.lock | cut -c1-12)
# Two checkouts must not use the cache of mypy, a database, at the same time.
ALONE := $(if $(shell command -v flock),flock $(TOOLS)/mypy.lock)
PYTEST := $(BIN)/python -m pytest -q -o cache_dir=$(TOOLS)/pytest
# Live runs of a soak use the shortest scenario in the tree.
SOAK_LIVE = $(if $(wildcard chaos/scenarios/flights-short.toml),--scenario flights-short --job examples/flights.py)
# Spark on one core, everything else on the other; keeping the order starts with the longest tests.
BOTH := -n 2 --dist loadscope --no-loadscope-reorder
QUICK := $(wildcard tests/unit tests/docs tests/formats tests/contract tests/sim)
# For recipes that start Spark. The user's JAVA_HOME wins if Spark can use it.
WITH_JAVA = JAVA_HOME="$$(cat $(VENV)/java-home)"
export JAVA_HOME PYTHON HOURS RATE
export MYPY_CACHE_DIR := $(TOOLS)/mypy
export RUFF_CACHE_DIR := $(TOOLS)/ruff
# Tests start hundreds of Python processes; without bytecode on disk, each of them recompiles every module.
unexport PYTHONDONTWRITEBYTECODE
# Tests without Spark keep their folders in memory if there is room and programs may run from there; on disk they would
# spend half of their time waiting for it to sync. Jobs on Spark have theirs on disk.
MEMORY := $(shell df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 >= 2048 && $$6 == "/dev/shm" {print $$6}')
MEMORY := $(if $(shell awk '$$2 == "/dev/shm" && $$4 ~ /noexec/' /proc/mounts 2>/dev/null),,$(MEMORY))
IN_MEMORY = $(if $(MEMORY),PYTEST_DEBUG_TEMPROOT="$${PYTEST_DEBUG_TEMPROOT:-$(MEMORY)}")

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-7s %s\n", $$1, $$2}' Makefile

demo: java ## run the flights job on real data, kill a worker, verify the result (3 min at most; MODE=microbatch)
	@$(WITH_JAVA) $(BIN)/holdfast demo $(if $(MODE),--mode $(MODE))

quick: check kernels ## run ruff, types, import rules, cheap tests without servers, first those that the change touches (2 min)
	@$(IN_MEMORY) $(PYTEST) $(BOTH) --tiers quick -m "not e2e and not slow and not thorough and not toxiproxy and not s3 and not kafka and not redis" $(QUICK)

test: check kernels java servers generator $(CLASSES) ## run cheap tests, and a sixth of the dear ones in turn (20 min; ALL=1: all of them)
	@$(IN_MEMORY) $(WITH_JAVA) $(PYTEST) $(BOTH) --tiers $(if $(ALL),all,rotate) -m "not slow" tests

costs: check kernels java servers generator $(CLASSES) ## measure tests, write tests/costs.txt (TESTS='tests/e2e tests/unit/test_x.py::test_y')
	@$(IN_MEMORY) $(WITH_JAVA) $(PYTEST) $(BOTH) --update-costs -m "not slow" $(or $(TESTS),tests)

soak: java servers ## run for hours: growth of a job, simulator and live faults (log in chaos-soak), slow tests (HOURS=2)
	@$(WITH_JAVA) $(BIN)/python tools/soak.py $(SOAK_LIVE)

bench: java ## run the benchmarks at full size
	@$(WITH_JAVA) $(PYTEST) -s --timeout=0 --bench=full tests/bench

docs: generator ## build the documentation site in site/; a warning fails the build
	@$(BIN)/python tools/docs.py --site

lock: $(READY) ## resolve pyproject.toml into requirements.lock and tools/docs.lock again
	@$(BIN)/python tools/lock.py

clean: ## remove .venv, caches and the output of the demo and the examples
	rm -rf $(VENV) .venv.lock build dist src/holdfast.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis \
		.import_linter_cache .holdfast flights-demo words.db* carriers.db* carriers-dead-letters growth-soak \
		chaos-run spark-warehouse site .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

check: $(READY)
	@mkdir -p $(TOOLS)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "not formatted: $(BIN)/ruff format ."; exit 1; }
	@$(ALONE) $(BIN)/mypy
	@out="$$($(BIN)/lint-imports --no-logo --cache-dir $(TOOLS)/imports 2>&1)" || { echo "$$out"; exit 1; }

kernels: $(READY)
	@$(BIN)/python tools/kernels.py $(CACHE)/kernels

java: $(READY)
	@(cd $(VENV) && [ -f java-home ] && [ -x "$$(cat java-home)/bin/java" ] && [ "$$(cat java-asked)" = "$$JAVA_HOME" ]) \
		|| tools/bootstrap.sh java

generator: $(READY)
	@tools/bootstrap.sh docs

servers: $(READY)
	@tools/bootstrap.sh toxiproxy
	@tools/bootstrap.sh s3
	@tools/bootstrap.sh kafka
	@tools/bootstrap.sh redis

$(VENV)/%-classes.jsa: tools/%_classes.py $(READY) | java servers
	@$(WITH_JAVA) $(BIN)/python $< $@

$(READY): requirements.lock pyproject.toml
	@tools/bootstrap.sh venv
