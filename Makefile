# Pecia: `make` alone says what there is. Everything sets itself up, from nothing but python3 (3.11 or 3.12), make and a
# package index.

VENV ?= .venv
# Where real vLLM lives, which pins versions of its own.
ENGINE_VENV ?= $(VENV)-engine
# Where the libraries live that Pecia is measured beside.
BENCH_VENV ?= $(VENV)-bench
# How many tests run at a time: most of them wait most of the time, for a lease to end or a server to start.
TEST_PROCESSES ?= 4
# Which mutants are tried, by the ends of their names: every tenth.
MUTANTS ?= *1
# The first interpreter that Pecia runs on; `make PYTHON=…` overrides it.
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
	$$p -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$p && break; done)
BIN := $(VENV)/bin
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
SITE ?= docs/_build
PYTEST := $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
# uv takes seconds where pip takes a minute; pip is for those whose index only pip knows how to reach.
LOCAL := local,korean
EXTRAS := local,dicom,eval,fhir,gateway,korean,mcp,parquet,pdf,plot,otel,witness
define install
	@UV_SYSTEM_CERTS=1 $(BIN)/python -m uv pip install --quiet --python $(1)/bin/python $(2) 2> $(1)/uv.log \
		|| $(BIN)/python -m pip --python $(1)/bin/python --disable-pip-version-check --quiet install $(2)
endef

.PHONY: help demo demo-engine up wheel release images test gate test-gate test-engine test-wheel soak growth mutate check lint types imports audit format bench bench-engine docs site lock clean

help:  ## Say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-13s %s\n", $$1, $$2 }'

demo: $(VENV)/.local  ## Read a set of medical documents on a throw-away fleet and check every result
	$(BIN)/pecia demo

demo-engine: $(ENGINE_VENV)/.installed  ## Read printed slips with real vLLM and a small model, without a GPU, and check every character
	$(ENGINE_VENV)/bin/pecia demo --engine vllm

up: $(VENV)/.local  ## Run a fleet and its web page on this machine until Ctrl-C
	$(BIN)/pecia up --gateway

wheel: $(VENV)/.local  ## Build the wheel and the sdist into dist/, the same bytes each time
	$(call install,$(VENV),--constraint constraints.txt hatchling)
	$(BIN)/hatchling build

test: $(VENV)/.dev  ## Run the tests of every day, on real servers that they start themselves: some minutes
	$(PYTEST) -m 'not gate'

gate: test check test-gate test-engine test-wheel  ## Run everything: all tests, real vLLM included, lint, types, documentation

test-gate: $(VENV)/.dev
	$(PYTEST) -m gate --hypothesis-profile gate

test-engine: $(ENGINE_VENV)/.installed  ## Run the tests that need vLLM, its CPU build, in an environment of their own
	$(ENGINE_VENV)/bin/python -m pytest tests/engine --numprocesses 2 --dist loadgroup

release: wheel $(VENV)/.dev  ## Check wheel and sdist, and write the list of what they install (SBOM) and hashes beside them
	$(BIN)/twine check --strict dist/pecia-*.whl dist/pecia-*.tar.gz
	rm -rf dist/venv
	$(BIN)/python -m venv --without-pip dist/venv
	$(call install,dist/venv,--constraint constraints.txt "$$(echo dist/pecia-*.whl)[$(EXTRAS)]")
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
		--output-file dist/pecia-$(VERSION).cdx.json dist/venv/bin/python
	cp producer/pecia/gateway/openapi.json dist/pecia-$(VERSION).openapi.json
	cd dist && sha256sum pecia-* > SHA256SUMS

test-wheel: release  ## Install the wheel into a fresh environment and run the demo there
	dist/venv/bin/pecia demo

images: $(VENV)/.dev  ## Build the images by buildah, without Docker, and run every service of compose.yaml in them
	IMAGES=$$(compose/images.sh) && buildah images && IMAGES=$$IMAGES $(BIN)/python -m pytest -m gate tests/acceptance/test_compose.py

soak: $(VENV)/.local  ## Break a fleet at work in every way there is, SEED=… in the same way again
	$(BIN)/python -m tests.soak $(if $(SEED),--seed $(SEED)) $(SOAK)

growth: $(VENV)/.local  ## See whether a process grows over 5,000 jobs: memory, descriptors, threads
	$(BIN)/python -m tests.soak.growth $(GROWTH)

mutate: $(VENV)/.mutate  ## Break the core in small ways and tell which no test notices: MUTANTS='*' all, not a tenth
	$(BIN)/python tests/mutate.py '$(MUTANTS)'

check: lint types imports audit site  ## Lint, types, import law, known weaknesses, documentation

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python tests/unasync.py --check

types: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python tests/typed_docs.py

imports: $(VENV)/.dev
	$(BIN)/lint-imports

audit: $(VENV)/.dev  ## Look for weaknesses in our code and, given the network, in what we depend on
	$(BIN)/bandit --recursive --quiet --severity-level medium --confidence-level medium producer workers schemas migrations
	$(BIN)/python tests/audit.py

format: $(VENV)/.dev  ## Format the code and mend what can be mended by a machine
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.local $(BENCH_VENV)/.installed  ## Measure Pecia beside others: BENCH="rivals urgent" some, BENCH_SIZE=full more
	BENCH_RIVALS_PYTHON=$(abspath $(BENCH_VENV)/bin/python) $(BIN)/python benchmarks/run.py $(if $(BENCH_SIZE),--size $(BENCH_SIZE)) $(BENCH)

bench-engine: $(ENGINE_VENV)/.installed  ## Measure a fleet on real vLLM beside vLLM alone, log-probabilities, preparation, real errors
	$(ENGINE_VENV)/bin/python benchmarks/engine_throughput.py
	$(ENGINE_VENV)/bin/python benchmarks/engine_throughput.py --checkpoint 115M --pages 64 --rounds 2
	$(ENGINE_VENV)/bin/python benchmarks/engine_throughput.py --checkpoint reader --pages 96 --rounds 3
	$(ENGINE_VENV)/bin/python benchmarks/log_probabilities.py
	$(ENGINE_VENV)/bin/python benchmarks/urgent_preparation.py
	$(ENGINE_VENV)/bin/python benchmarks/slips.py

docs: $(VENV)/.dev  ## Write what is generated: settings, failure codes, JSON Schema, the command's help, the reference, figures, the blocking client
	$(BIN)/python tests/unasync.py
	$(BIN)/python docs/contract.py
	$(BIN)/typer pecia.cli.app utils docs --name pecia --title "The command" --output docs/cli.md
	$(BIN)/python benchmarks/run.py --only-page
	$(BIN)/python docs/house.py
	$(BIN)/python docs/reference.py

site: $(VENV)/.dev  ## Build this version's documentation into docs/_build, or SITE=…, beside others; a warning is an error
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b html -d docs/_build/.doctrees docs $(SITE)/$(VERSION)

lock:  ## Resolve constraints.txt anew (needs uv on the path)
	uv pip compile --universal --python-version 3.11 --no-emit-index-url --no-header --no-annotate \
		--extra workers --extra local --extra dicom --extra eval --extra fhir --extra gateway --extra korean --extra mcp --extra parquet --extra pdf --extra plot --extra otel --extra ray --extra witness --group dev --upgrade --quiet pyproject.toml --output-file constraints.txt

clean:  ## Remove the virtual environment and every cache
	rm -rf $(VENV) $(ENGINE_VENV) $(BENCH_VENV) dist build docs/_build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Pecia needs Python 3.11 or 3.12 with venv (on Debian: apt install python3-venv)." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip --disable-pip-version-check --quiet install --upgrade 'pip>=25.1' 'uv>=0.9'

$(VENV)/.local: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Pecia with its embedded servers and CPU engine into $(VENV) …"
	$(call install,$(VENV),--constraint constraints.txt --editable '.[$(LOCAL)]')
	@$(BIN)/python -m tests.shared.korean $(VENV)/share/tessdata
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.local
	@echo "Installing the tools of the developers …"
	$(call install,$(VENV),--constraint constraints.txt --group dev --editable '.[$(EXTRAS)]')
	@touch $@

$(VENV)/.mutate: pyproject.toml | $(VENV)/.dev
	@echo "Installing what breaks the core …"
	$(call install,$(VENV),--constraint constraints.txt --group mutate)
	@touch $@

$(ENGINE_VENV)/.installed: pyproject.toml tests/engine/install.sh
	@echo "Installing vLLM for the CPU into $(ENGINE_VENV) (some minutes) …"
	PYTHON=$(PYTHON) tests/engine/install.sh $(ENGINE_VENV)
	@touch $@

$(BENCH_VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing what Pecia is measured beside into $(BENCH_VENV) …"
	$(BIN)/python -m venv $(BENCH_VENV)
	@$(BENCH_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade 'pip>=25.1'
	$(call install,$(BENCH_VENV),--group bench)
	@touch $@
