# Every target works from a bare clone; it needs make, Python 3.10+ with venv, and Java 17+.
.DEFAULT_GOAL := help
SHELL := /bin/bash -euo pipefail

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Not --quiet, with which --strict would not count warnings. The variable leaves out the theme's news.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input

.PHONY: help venv jars test test-unit messages test-slow test-kills test-clusters test-stores test-upgrade coverage mutants matrix chaos chaos-nodes chaos-yarn chaos-mutations soak bench check docs demo clean

help: ## Show these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.stamp ## Create .venv with the pinned dependencies and this project

# pyspark is published as source only. Installing setuptools first and building without isolation
# lets these files' hashes cover every file that pip downloads. They list every package, and without
# --no-deps pip looks for others: coverage[toml], which pytest-cov wants, is no coverage==7.17.3 to it.
# SPARK=4.0.5 installs that pyspark instead; all other packages stay the same.
OTHER_SPARK := $(if $(SPARK),constraints-spark-$(SPARK).txt)
$(VENV)/.dependencies$(SPARK): constraints.txt $(OTHER_SPARK)
	@echo "Installing the pinned dependencies into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.dependencies*
	@awk '/^[a-z]/ { keep = /^setuptools==/ } keep' constraints.txt > $(VENV)/setuptools.txt
	@awk '/^[a-z]/ { keep = !/^pyspark==/ || !"$(SPARK)" } keep' constraints.txt > $(VENV)/constraints.txt
	@cat $(OTHER_SPARK) /dev/null >> $(VENV)/constraints.txt
	@$(PIP) install --require-hashes --requirement $(VENV)/setuptools.txt
	@$(PIP) install --require-hashes --no-deps --requirement $(VENV)/constraints.txt \
		--no-build-isolation --use-pep517
	@touch $@

$(VENV)/.stamp: $(VENV)/.dependencies$(SPARK) pyproject.toml
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

# Else the first test that needs Spark would make the archive, and all others wait for it. One
# that can't be made is no fault of the tests.
jars: $(VENV)/.stamp ## Download Kafka, a schema registry and Spark's Kafka source, and archive Spark's classes
	@$(BIN)/spark-eos jars > /dev/null
	@$(BIN)/spark-eos class-archive > /dev/null || true
	@$(BIN)/spark-eos jars --set kafka-4.4.0 > /dev/null
	@$(BIN)/spark-eos jars --set kafka-4.3.1 > /dev/null
	@$(BIN)/spark-eos jars --set apicurio-registry-2.6.13 > /dev/null

# Tests wait more than they work, so there are more processes than processors. They share brokers,
# and three of them run what needs Spark: tests/support/scheduling.py. Their order is random; its seed
# is printed at the end, and ORDER=seed gives the same again.
PROCESSES ?= 6
# Else each process, and each of Spark's workers, would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST = $(BIN)/python -m pytest $(if $(ORDER),--randomly-seed=$(ORDER))
PARALLEL = --numprocesses $(PROCESSES) --dist loadscope

test: jars ## Run the tests with real brokers and a real Spark; ORDER=seed for an order as before
	@$(PYTEST) -m "not slow" $(PARALLEL) $(ARGS)

test-unit: $(VENV)/.stamp ## Run the tests that need no broker and no JVM: half a minute, and a minute to set up
	@$(PYTEST) tests/unit $(ARGS)

messages: $(VENV)/.stamp ## Write tests/messages.txt, what errors say in unit tests, for a review
	@rm -f tests/messages.txt
	@WRITE_MESSAGES=1 $(PYTEST) tests/unit --numprocesses 0 $(ARGS)

test-slow: jars ## Run the slowest tests: faults, the demo, the jobs, secrets, Connect
	@$(PYTEST) -m slow --numprocesses 2 --dist worksteal $(ARGS)

# One process: a YARN, its containers, a broker and a Spark are enough for two cores.
test-clusters: jars ## Kill queries on a real YARN, on hosts of their own (root only), and on a real HDFS: about half an hour
	@SPARK_EOS_CLUSTERS=1 $(PYTEST) tests/integration/clusters/test_yarn.py $(ARGS)
	@SPARK_EOS_CHECKPOINTS=hdfs SPARK_EOS_KILLS=1 $(PYTEST) tests/integration/spark/test_staged_faults.py \
		tests/integration/spark/test_staged_kills.py $(ARGS)
	@SPARK_EOS_CLUSTERS=1 unshare --net sh -c 'ip link set lo up && exec "$$@"' - \
		$(PYTEST) tests/integration/clusters/test_hosts.py $(ARGS)

# The server's directory is the path's last, since it has a Python of its own.
STORES = PATH="$$PATH:$(CURDIR)/$(VENV)/stores/bin" SPARK_EOS_CHECKPOINTS=s3a
test-stores: jars $(VENV)/stores/.stamp ## Keep checkpoints in a real S3 server, and kill staged queries there: an hour or more
	@$(STORES) $(PYTEST) tests/integration/clusters/test_object_store.py $(ARGS)
	@$(STORES) SPARK_EOS_KILLS=1 $(PYTEST) tests/integration/spark/test_staged_faults.py \
		tests/integration/spark/test_staged_kills.py $(ARGS)

test-kills: jars ## Kill staged queries of every shape at random moments: about fifteen minutes
	@SPARK_EOS_KILLS=1 $(PYTEST) tests/integration/spark/test_staged_kills.py $(ARGS)

test-upgrade: jars ## Upgrade three brokers under a query, and let drivers of two versions take over, TURNS=n times
	@SPARK_EOS_TURNS=$(or $(TURNS),6) $(PYTEST) tests/integration/spark/test_brokers_upgraded.py \
		tests/integration/spark/test_earlier_version.py $(ARGS)

# Which tests run which lines, for both targets below: of this code, and only if all pass.
.DELETE_ON_ERROR:
build/tests.xml: $(shell find spark_eos tests -name '*.py') | jars
	@$(PYTEST) -m "not slow" $(PARALLEL) --cov --cov-context=test --cov-report= --junitxml=$@

coverage: build/tests.xml ## Measure which lines and branches the tests of `make test` run
	@PYTHONPATH=tests $(BIN)/python tools/covered.py

mutants: build/tests.xml $(VENV)/mutants/.stamp ## Break what decides on commits in random places; tests must show it; ARGS="--help"
	@PYTHONPATH=tests $(BIN)/python tools/mutants.py $(ARGS)

matrix: jars ## Run the tests with other versions of Python, Spark and Kafka, into evidence/matrix.json; ARGS="--help"
	@PYTHONPATH=tests $(BIN)/python tools/matrix.py $(ARGS)

chaos: jars ## Inject faults into running queries for 15 minutes, from a random seed or SEED=n
	@cd tests && ../$(BIN)/python -m chaos $(if $(SEED),--seed $(SEED))

chaos-nodes: jars ## The same for 15 minutes on three nodes, which fail and lead by turns
	@cd tests && ../$(BIN)/python -m chaos --nodes 3 $(if $(SEED),--seed $(SEED))

chaos-yarn: jars ## The same with executors in the containers of a YARN
	@cd tests && ../$(BIN)/python -m chaos --nodes 3 --yarn --cluster --front sink --front mirrored --front staged $(if $(SEED),--seed $(SEED))

chaos-mutations: jars ## Break spark-eos in known ways; fault injection must detect each
	@cd tests && ../$(BIN)/python -m chaos --mutations $(if $(SEED),--seed $(SEED))

soak: jars ## Run chaos for four hours, or HOURS=n
	@cd tests && ../$(BIN)/python -m chaos --minutes $$(( 60 * $(or $(HOURS),4) ))

# Environments of their own, because their packages may differ from ours.
$(VENV)/quix/.stamp: benchmarks/quix-constraints.txt
$(VENV)/mutants/.stamp: tools/mutants-constraints.txt
$(VENV)/stores/.stamp: tests/stores-constraints.txt
$(VENV)/%/.stamp: $(VENV)/.stamp
	@echo "Installing the packages of $(filter %.txt,$^) into $(@D)"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet --no-input install \
		--require-hashes --no-deps --requirement $(filter %.txt,$^)
	@touch $@

bench: jars $(VENV)/quix/.stamp ## Compare speed with the alternatives and update docs/performance; SCALE=0.5 ROUNDS=3 for less
	@PYTHONPATH=tests $(BIN)/python benchmarks --quix $(VENV)/quix/bin/python $(if $(SCALE),--scale $(SCALE)) $(if $(ROUNDS),--rounds $(ROUNDS))
	@PYTHONPATH=tests $(BIN)/python benchmarks/summary.py

check: $(VENV)/.stamp ## Check style, types, import contracts, manifests and documentation links
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/hadolint conf/kubernetes/Dockerfile
	@$(BIN)/kubernetes-validate --strict --quiet conf/kubernetes/orders.yaml
	@$(MKDOCS) --site-dir $(VENV)/docs

docs: $(VENV)/.stamp ## Update the generated pages and build the documentation into build/docs
	@$(BIN)/python tools/options.py
	@PYTHONPATH=tests $(BIN)/python benchmarks/summary.py
	@PYTHONPATH=.:tests $(BIN)/python tools/picture.py
	@$(MKDOCS)
	@echo "The site begins at build/docs/index.html"

demo: jars ## Show exactly-once on a real broker
	@PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(BIN)/python -m demo

clean: ## Remove everything built here; downloads stay in the user's cache
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
