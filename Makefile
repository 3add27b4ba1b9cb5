# Everything a user or a contributor types. The venv is made on demand; its chatter goes to stderr, so that
# `make quickstart ARGS="--json"` prints the JSON document and nothing else on stdout.

MAKEFLAGS += --no-print-directory
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help quickstart notebooks test cover check kernels readers bench simulate soak monkey fuzz matrix java mariadb mysql azurite spark iproute clean

# Where this is set, every process compiles Weir's modules again, and every process of pytest rewrites all tests again:
# two thirds of the time in which it collects them.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
ARGS ?=
ALL ?=
NAME ?=
SEEDS ?= 1000
SEED ?=
PLANTED ?=
MINUTES ?= 15
SECONDS ?= 60
# Processes that run tests side by side, twice as many as CI has cores, since tests of clusters, leases and servers that
# start mostly wait; one less where there is no memory for them. A few tests that are named in ARGS are faster in one.
# All tests of a file run in one process.
MEMORY_GIB := $(shell awk '/^MemTotal/ {print int($$2 / 1048576)}' /proc/meminfo 2>/dev/null || echo 0)
WORKERS ?= $(if $(ARGS),0,$(shell [ $(MEMORY_GIB) -ge 20 ] && echo 4 || echo 3))
PARALLEL = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

help: ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 20
	@echo
	@echo '  make quickstart ARGS="--seconds 20 --json"      options of the command pass through ARGS'
	@echo '  make test ARGS="tests/unit -k lag"'
	@echo '  make bench NAME=decode-postgres'

quickstart: java $(if $(findstring mariadb,$(ARGS)),mariadb) ## replicate a database under load into Delta tables, here and now
	@exec $(PYTHON) -m capture quickstart $(ARGS)

notebooks: java ## run the notebooks of examples/, cell by cell
	@$(PYTHON) -m tests.notebooks $(ARGS)

test: java mariadb mysql iproute ## all tests but the long ones of make matrix
	@$(PYTHON) -m pytest $(PARALLEL) $(ARGS)

cover: java mariadb iproute ## unit and integration tests with a coverage report
	@$(PYTHON) -m pytest tests/unit tests/contracts tests/integration --cov --cov-report=term:skip-covered $(ARGS)

check: $(INSTALLED) ## format, lint, types, layers
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

kernels: java ## compile the kernels, which the first process that needs them does otherwise, and archive Spark's classes
	@$(PYTHON) -m capture kernels compile >&2

readers: $(INSTALLED) ## which readers read which tables, tried now, Spark too after make spark: writes the tables of docs/sinks.md
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable '.[readers]' >&2
	@$(PYTHON) -m tests.architecture.render_readers

bench: java mariadb ## all benchmarks with their peers, or one: NAME=...
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable '.[bench]' >&2
	@$(PYTHON) -m benchmarks $(NAME) $(ARGS)

simulate: $(INSTALLED) ## whole clusters from seeds: SEEDS=1000, one with its story: SEED=7, the planted bugs: PLANTED=1
	@PYTHONHASHSEED=0 $(PYTHON) -m tests.simulation $(if $(SEED),--seed $(SEED),$(if $(PLANTED),--planted,--seeds $(SEEDS)))

soak: java mariadb $(if $(findstring mysql,$(ARGS)),mysql) ## random schema changes, rows and kills on three servers: MINUTES=15 for each of three seeds, or SEED=7
	@$(PYTHON) -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seeds $(SEED)) $(ARGS)

monkey: java mariadb ## an operator's random commands, with schema changes, rows and kills: MINUTES=5 SEED=7
	@$(PYTHON) -m tests.soak.monkey --seconds $$((60 * $(MINUTES))) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Two tests at a time have three times the promised times, those that are named in ARGS the promised ones. tests/selection.py: what a run leaves out.
matrix: WORKERS = $(if $(ARGS),0,2)
# A tenth of the tests each day (tests/selection.py), or TURN=1 to TURN=10.
TURN ?= $(shell echo $$(($$(date +%s) / 86400)))
matrix: export TEST_TURN := $(if $(ARGS)$(ALL),,$(TURN))
matrix: java mariadb mysql azurite iproute ## what make test leaves out, in ten turns, one a day: fail-points, stories of faults, generated cases; ALL=1: all, in hours
	@TEST_PATIENCE=$(if $(ARGS),1,3) $(PYTHON) -m pytest $(PARALLEL) -m matrix $(ARGS)
	@$(if $(ARGS),,$(PYTHON) -m pytest $(PARALLEL) -m "matrix or not matrix" --hypothesis-profile matrix tests/unit)

fuzz: $(INSTALLED) ## bytes that nobody would send, for everything that reads bytes: SECONDS=60 for each target, ARGS="--only frames,toml"
	@$(PYTHON) -m tests.fuzz --seconds $(SECONDS) $(ARGS)

clean: ## remove the venv and what tools have left
	rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

# Python 3.11 or newer that can make a venv.
$(INSTALLED): pyproject.toml
	@{ set -e; \
	if [ ! -x $(PYTHON) ]; then \
	  for candidate in python3 python3.13 python3.12 python3.11 ""; do \
	    if [ -z "$$candidate" ]; then \
	      echo "error: no Python 3.11+ with venv found; install one (Debian: apt-get install python3 python3-venv)"; exit 1; \
	    fi; \
	    $$candidate -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	  done; \
	  echo "making $(VENV) with $$candidate"; \
	  $$candidate -m venv $(VENV); \
	fi; \
	echo "installing packages into $(VENV) (takes a few minutes the first time)"; \
	PYTHONWARNINGS=ignore $(PYTHON) -m pip install --quiet --disable-pip-version-check $(if $(CI),--constraint constraints.txt) --editable '.[dev]'; \
	touch $@; } >&2

# Spark needs Java 17 or newer: JAVA_HOME, then PATH. Root on Debian gets it, anybody else a line that says what to do.
java: $(INSTALLED)
	@{ $(PYTHON) -m capture java >/dev/null 2>&1 || { \
	if [ -z "$$JAVA_HOME" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing a Java runtime (apt-get)"; \
	  apt-get update -qq && { apt-get install -qq -y --no-install-recommends openjdk-17-jre-headless || \
	  apt-get install -qq -y --no-install-recommends default-jre-headless; }; \
	fi; \
	$(PYTHON) -m capture java >/dev/null; }; } >&2

# The tests start a MariaDB of their own and load it with sysbench. The same rule as for Java.
mariadb: $(INSTALLED)
	@{ wanted() { PATH="$$PATH:/usr/sbin:/usr/local/sbin" command -v $$1 >/dev/null; }; \
	wanted mariadbd && wanted sysbench || { \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing MariaDB and sysbench (apt-get)"; \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends mariadb-server sysbench; \
	fi; \
	wanted mariadbd && wanted sysbench || { \
	  echo "error: the tests need mariadbd and sysbench; install mariadb-server and sysbench (Debian: apt-get)"; exit 1; }; }; } >&2

# No release of Debian has MySQL. Tests on it are skipped where it cannot be had, and say so.
mysql: $(INSTALLED)
	@$(PYTHON) -m tests.mysql_package

# Azure Blob's emulator, from npm. Tests on it are skipped where it cannot be had, and say so.
azurite: $(INSTALLED)
	@$(PYTHON) -m tests.object_stores

# Spark with the jars of Delta and Iceberg, from PyPI and Maven Central (500 MB): not fetched unless it is asked for.
spark: $(INSTALLED)
	@$(PYTHON) -m tests.reader_spark

# Tests cut captures off in network namespaces. Where these cannot be had (not root), such tests are skipped and say so.
iproute:
	@{ PATH="$$PATH:/usr/sbin:/sbin" command -v ip >/dev/null || { \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing iproute2 (apt-get)"; \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends iproute2; \
	fi; }; } >&2
