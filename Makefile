# The commands of a developer. The first use of any of them creates .venv.
.DEFAULT_GOAL := help
.PHONY: help demo quick test soak bench lock clean check java toxiproxy
MAKEFLAGS += --no-print-directory

VENV := .venv
READY := $(VENV)/.installed
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q
# Live runs of a soak: the shortest scenario that the tree has.
SOAK_LIVE = $(if $(wildcard chaos/scenarios/flights-short.toml),--scenario flights-short --job examples/flights.py)
# Spark on one core, everything else on the other; the order keeps what takes longest first.
BOTH := -n 2 --dist loadscope --no-loadscope-reorder
QUICK := $(wildcard tests/unit tests/formats tests/contract tests/sim)
# Recipes that start Spark. JAVA_HOME given by the user wins, if Spark can use it.
WITH_JAVA = JAVA_HOME="$$(cat $(VENV)/java-home)"
export JAVA_HOME PYTHON HOURS
# Tests start hundreds of Python processes; without bytecode on disk each of them compiles every module again.
unexport PYTHONDONTWRITEBYTECODE
# Where the folders of quick tests lie: in memory, if there is room and programs may run from there. On a disk, the tests
# spend half of their time waiting for it to sync. `make test` runs them on the disk.
MEMORY := $(shell df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 >= 2048 && $$6 == "/dev/shm" {print $$6}')
MEMORY := $(if $(shell awk '$$2 == "/dev/shm" && $$4 ~ /noexec/' /proc/mounts 2>/dev/null),,$(MEMORY))
IN_MEMORY = $(if $(MEMORY),PYTEST_DEBUG_TEMPROOT="$${PYTEST_DEBUG_TEMPROOT:-$(MEMORY)}")

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-7s %s\n", $$1, $$2}' Makefile

demo: java ## the flights job on real data: a worker is killed, the result is verified (3 min at most)
	@$(WITH_JAVA) $(BIN)/holdfast demo

quick: check ## ruff, types, import rules, tests that need no Spark (2 min at most)
	@$(IN_MEMORY) $(PYTEST) $(BOTH) -m "not e2e and not slow and not thorough and not toxiproxy" $(QUICK)

test: check java toxiproxy ## everything but soak: quick, every scenario, Spark, smoke benchmarks
	@$(WITH_JAVA) $(PYTEST) $(BOTH) -m "not slow" tests

soak: java toxiproxy ## hours: simulator and live faults (log in chaos-soak), every step of the storage, what a job takes up (HOURS=2)
	@$(WITH_JAVA) $(BIN)/holdfast chaos soak --hours $(or $(HOURS),2) --workers 2 --folder chaos-soak $(SOAK_LIVE)
	@$(WITH_JAVA) $(PYTEST) -s --timeout=0 -m slow tests

bench: java ## benchmarks at full size
	@$(WITH_JAVA) $(PYTEST) -s --timeout=0 --bench=full tests/bench

lock: $(READY) ## resolve pyproject.toml again into requirements.lock
	@$(BIN)/python tools/lock.py

clean: ## remove .venv, caches and what the demo and the examples left
	rm -rf $(VENV) .venv.lock build dist src/holdfast.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis \
		.import_linter_cache .holdfast flights-demo words.db* carriers.db* carriers-dead-letters growth-soak \
		chaos-run spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

check: $(READY)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@out="$$($(BIN)/lint-imports --no-logo 2>&1)" || { echo "$$out"; exit 1; }

java: $(READY)
	@(cd $(VENV) && [ -f java-home ] && [ -x "$$(cat java-home)/bin/java" ] && [ "$$(cat java-asked)" = "$$JAVA_HOME" ]) \
		|| tools/bootstrap.sh java

toxiproxy: $(READY)
	@tools/bootstrap.sh toxiproxy

$(READY): requirements.lock pyproject.toml
	@tools/bootstrap.sh venv
