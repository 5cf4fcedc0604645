# One verb for each thing that one does here. CI calls the same ones.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO_INSTALLED := $(VENV)/.installed-demo
SITE_INSTALLED := $(VENV)/.installed-docs
NODE := tests/node
NODE_INSTALLED := $(NODE)/node_modules/.installed
KAFKA := tests/kafka
KAFKA_INSTALLED := $(KAFKA)/libs/.installed
JAVA := tests/java
JAVA_INSTALLED := $(JAVA)/libs/.installed
QUIXSTREAMS := .venv-quixstreams
QUIXSTREAMS_INSTALLED := $(QUIXSTREAMS)/.installed

EXTRAS := azblob,cli,console,cosmos,eventhubs,kafka,kinesis,nats,objects,postgresql,redis,serve,uvloop,dev
DEMO_EXTRAS := cli,console,objects,uvloop

CORES := $(shell getconf _NPROCESSORS_ONLN)
COMPUTING := -n $(shell expr $(CORES) + 1) --dist worksteal
WAITING := -n $(shell expr $(CORES) + 2) --dist worksteal

# What `make quick` tests: what decides, what runs it, and the two stores that need no server.
QUICK_TESTS := tests/unit/core tests/unit/runtime tests/unit/local tests/unit/stores/test_*.py tests/unit/stores/sqlite \
	$(patsubst %,tests/unit/test_%.py,imports model public_names signals text urls) \
	tests/contract/test_memory_store.py tests/contract/test_sqlite_store.py
QUICK_SEEDS := 100
# Where make can do it, what runs side by side is printed one after the other.
SIDE_BY_SIDE := --no-print-directory --keep-going --jobs $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

SUMMARY := .pytest_cache/summary
test: export EVENFLOW_SUMMARY := $(SUMMARY)

# Hundreds of tests start a program: each would compile all of evenflow again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo check format quick quick-lint quick-types quick-tests quick-worlds test sim bench docs site \
	pictures clean

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## the virtual environment in .venv, made or brought up to date

demo: $(DEMO_INSTALLED)  ## 100,000 homes, six consumers, two pages; SECONDS=60 ends it by itself, SCALE=small is for laptops
	@$(BIN)/python -m examples.home_security $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SCALE),--scale $(SCALE)) $(ARGS)

check: setup  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

quick: setup  ## lint, types, tests of core, runtime, memory and SQLite, and 100 simulated worlds: after every small change
	@$(MAKE) $(SIDE_BY_SIDE) quick-tests quick-types quick-worlds quick-lint

quick-lint:
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

quick-types:
	@$(BIN)/mypy

quick-tests:
	@$(BIN)/pytest -q $(COMPUTING) $(QUICK_TESTS)

quick-worlds:
	@$(BIN)/evenflow sim --seeds $(QUICK_SEEDS)

# Tests of real processes come last: they wait more than they work, and must not wait for those that only compute.
test:  ## check, and all tests
	@$(MAKE) --no-print-directory --jobs check $(NODE_INSTALLED) $(KAFKA_INSTALLED) $(JAVA_INSTALLED)
	@rm -rf $(SUMMARY); failed=0; \
		$(BIN)/pytest $(COMPUTING) --ignore=tests/integration || failed=1; \
		$(BIN)/pytest $(WAITING) tests/integration || failed=1; \
		$(BIN)/python -m tests.summary; exit $$failed

sim: setup  ## the simulated world: 1,000 seeds, all the checkers
	$(BIN)/evenflow sim --seeds 1000

bench: setup $(NODE_INSTALLED) $(KAFKA_INSTALLED) $(QUIXSTREAMS_INSTALLED)  ## all benchmarks, as a table
	$(BIN)/python -m benchmarks

docs: setup  ## run the code blocks of README and docs, and follow their links
	$(BIN)/pytest tests/docs

site: $(SITE_INSTALLED)  ## the docs as a searchable site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pictures: setup  ## take the pictures of the README again (needs Chromium)
	$(BIN)/python -m tests.pictures

clean:  ## remove what was made here, the virtual environment too
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info $(NODE)/node_modules \
		$(KAFKA)/libs $(JAVA)/libs $(QUIXSTREAMS)

# Installs evenflow with these extras, in the versions of constraints.txt. What is there already stays.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "evenflow needs Python 3.11 or later: name one, as in make test PYTHON=python3.12" >&2; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[$(1)]'
endef

$(INSTALLED): pyproject.toml constraints.txt
	$(call install,$(EXTRAS))
	@touch $(DEMO_INSTALLED) $@

# The demo alone needs a tenth of that, so that it is there within a minute. `make setup` completes it.
$(DEMO_INSTALLED): pyproject.toml constraints.txt
	$(call install,$(DEMO_EXTRAS))
	@touch $@

# What builds the site. Nothing else needs it.
$(SITE_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[docs]'
	@touch $@

# Azurite and Azure's JavaScript clients. Without npm the tests that need them are skipped, and say so.
$(NODE_INSTALLED): $(NODE)/package.json $(NODE)/package-lock.json
	@mkdir -p $(@D)
	@if command -v npm >/dev/null; then cd $(NODE) && npm ci --silent --no-progress --no-audit --no-fund; \
		else echo "npm is not installed: tests of Azure's programs are skipped" >&2; fi
	@mkdir -p $(@D) && touch $@

# A Kafka broker. Without Maven and Java the tests that need one are skipped, and say so.
$(KAFKA_INSTALLED): $(KAFKA)/pom.xml
	@if command -v mvn >/dev/null && command -v java >/dev/null; then \
		mvn --batch-mode --quiet --file $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=libs; \
		else echo "Maven or Java is not installed: tests of Kafka are skipped" >&2; fi
	@mkdir -p $(@D) && touch $@

# Java's change feed processor. After Kafka: two at once would write the same files of Maven's own.
$(JAVA_INSTALLED): $(JAVA)/pom.xml | $(KAFKA_INSTALLED)
	@if command -v mvn >/dev/null && command -v javac >/dev/null; then \
		mvn --batch-mode --quiet --file $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=libs; \
		else echo "Maven or a JDK is not installed: tests with hosts of Java are skipped" >&2; fi
	@mkdir -p $(@D) && touch $@

# Of a benchmark: what Kafka is compared with. It needs an older confluent-kafka than we do, so it lives by itself.
$(QUIXSTREAMS_INSTALLED): benchmarks/quixstreams.txt
	test -x $(QUIXSTREAMS)/bin/pip || $(PYTHON) -m venv $(QUIXSTREAMS)
	$(QUIXSTREAMS)/bin/pip install --quiet -r $<
	@touch $@
