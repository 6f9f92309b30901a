# make run        set up, then run an example
# make test       set up, then check everything; FAST=1 skips the slow tests
# make fmt        format the code and fix what can be fixed
# make docs       write the generated pages of docs, and build the documentation site
# make generate   write every generated file; tests compare them with their sources
# make bench      run the benchmarks and render docs/BENCHMARKS.md
# make fuzz       run every fuzz target for SECONDS each (60); TARGETS="log grpc" runs some
# make faults     plant every fault of tests/faults, measure, and render docs/FAULTS.md
# make chaos      plant random faults into one cluster for MINUTES, drawn by SEED
# make audit      look up known vulnerabilities of all locked packages; needs a network
# make package    generate, build the site, then build a wheel
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := pip install --quiet --disable-pip-version-check

# Tests start thousands of Python processes: without bytecode on disk each compiles all it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test fmt fuzz generate package docs site pages bench stopwatch audit faults chaos proto golden web demo lock clean

run: $(VENV)/run.stamp
	$(BIN)/strata run examples/digits.py --workers 4 --kill 1

test: $(VENV)/test.stamp $(VENV)/frameworks.stamp $(VENV)/trackers.stamp $(VENV)/docs.stamp $(VENV)/system.stamp $(VENV)/node.stamp $(VENV)/web.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/$(if $(FAST),pytest -n 2 --dist worksteal -p no:schemathesis -x -q -m "not slow",python -m tests.suite)

fmt: $(VENV)/test.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What breaks a promise is kept in build/fuzz; `python -m tests.fuzz NAME --input FILE` repeats it.
SECONDS ?= 60
TARGETS ?= $(patsubst tests/fuzz/fuzz_%.py,%,$(wildcard tests/fuzz/fuzz_*.py))

fuzz: $(VENV)/test.stamp $(VENV)/frameworks.stamp $(VENV)/fuzz.stamp
	@failed=; for name in $(TARGETS); do echo "== $$name"; \
		$(BIN)/python -W ignore -m tests.fuzz $$name --seconds $(SECONDS) || failed="$$failed $$name"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

# Not part of `make test`: the databases of vulnerabilities are on the network and change by the day.
audit: $(VENV)/test.stamp $(VENV)/node.stamp
	$(BIN)/$(PIP) pip-audit
	for lock in requirements/*.txt; do $(BIN)/pip-audit --require-hashes --disable-pip -r $$lock || exit 1; done
	cd web && npm audit

# The generated files that are committed are those that users need without Node or a compiler, and
# those that freeze a format.
generate: proto golden pages web demo

package: generate site
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

docs: pages site

site: $(VENV)/docs.stamp
	$(BIN)/python -X utf8 -m docs.site.build

pages: $(VENV)/test.stamp
	$(BIN)/python -X utf8 -c "from strata.core.record import event_reference as docs; print(end=docs.events())" > docs/EVENTS.md
	$(BIN)/python -X utf8 -c "from strata.core.record import event_reference as docs; print(end=docs.lifecycles())" > docs/LIFECYCLES.md
	$(BIN)/python -X utf8 -m tests.seeds.promises > docs/SEEDS.md

# The first minutes of a new user, with the time of each step; it downloads what pip installs.
stopwatch: $(VENV)/test.stamp
	$(BIN)/python -m tests.install.stopwatch > docs/STOPWATCH.md

# Every fault of the matrix, measured on this machine; some need root (a small disk, namespaces).
faults: $(VENV)/test.stamp $(VENV)/system.stamp
	FAULTS_OUT=tests/faults/results.json $(BIN)/pytest -q tests/faults/test_matrix.py
	$(BIN)/python -m tests.faults.table > docs/FAULTS.md

MINUTES ?= 10
chaos: $(VENV)/test.stamp
	$(BIN)/python -m tests.faults.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# Results are stored in benchmarks/results and rendered to docs/BENCHMARKS.md. ONLY="core store" runs
# some of the scripts.
bench: $(VENV)/test.stamp $(VENV)/system.stamp
	$(BIN)/python benchmarks/run.py $(ONLY)

# A stamp is newer than what it was installed from, so a second make installs nothing.
$(VENV)/%.stamp: requirements/%.txt pyproject.toml
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) --require-hashes -r $<
	$(BIN)/$(PIP) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/frameworks.stamp $(VENV)/trackers.stamp $(VENV)/docs.stamp $(VENV)/fuzz.stamp: $(VENV)/%.stamp: requirements/%.txt $(VENV)/test.stamp
	@$(BIN)/$(PIP) -r $< && touch $@ || echo "not all of $< could be installed"

proto: $(VENV)/test.stamp
	$(BIN)/python -m grpc_tools.protoc --proto_path=proto/strata/v1 \
		--pyi_out=src/strata/wire/v1 \
		--descriptor_set_out=src/strata/wire/v1/coordinator.binpb coordinator.proto
	cp src/strata/wire/v1/coordinator.binpb tests/golden/coordinator-v1.binpb

golden: $(VENV)/test.stamp
	$(BIN)/python -m tests.core.golden

# Programs that tests run and pip does not have: installed once, where that is allowed and none of
# them is started; elsewhere the tests that need one fail and say what to install.
PROGRAMS := prometheus chromium npm postgresql
ROOT := $(if $(filter 0,$(shell id -u)),,sudo -n)
APT := $(ROOT) env SYSTEMD_OFFLINE=1 RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq

$(VENV)/system.stamp: Makefile
	@mkdir -p $(VENV)
	@missing=$$(for program in $(PROGRAMS); do \
		command -v $$program || ls /usr/lib/$$program/*/bin/initdb || echo $$program >&3; \
		done 3>&1 >/dev/null 2>&1); \
	if test -z "$$missing" || \
		{ $(APT) update && $(APT) install --yes --no-install-recommends $$missing; } >/dev/null 2>&1; \
	then touch $@; else echo "apt-get could not install:" $$missing; fi

# The packages of the Node.js client that a test runs; without npm that test fails and says so.
NODE := tests/interop/node

$(VENV)/node.stamp: $(NODE)/package-lock.json | $(VENV)/system.stamp
	@if command -v npm >/dev/null; \
	then npm ci --prefix $(NODE) --ignore-scripts --no-audit --no-fund --loglevel=error && touch $@; \
	else echo "npm is not there to install the packages of $(NODE)"; fi

OPENAPI := import json; from strata import __version__; \
	from strata.coordinator.rest.app import document; \
	print(json.dumps(json.loads(document(__version__)), indent=1))

web: $(VENV)/run.stamp $(VENV)/web.stamp
	$(BIN)/python -X utf8 -c "$(OPENAPI)" > web/openapi.json
	npm run --prefix web types
	npm run --prefix web build

# The run that the page plays as its demo; one seed, so it changes only when what is recorded does.
demo: $(VENV)/run.stamp
	rm -rf build/demo src/strata/timeline/archive/demo
	$(BIN)/python -m strata.sim.demo_recording build/demo
	$(BIN)/strata export --format parquet --data build/demo --out src/strata/timeline/archive

$(VENV)/web.stamp: web/package-lock.json | $(VENV)/system.stamp
	@if command -v npm >/dev/null; \
	then npm ci --prefix web --ignore-scripts --no-audit --no-fund --loglevel=error && touch $@; \
	else echo "npm is not there to install the packages of web"; fi

# The lock is resolved for every platform; pip picks by marker when it installs.
COMPILE = $(VENV)/lock/bin/uv pip compile pyproject.toml --extra server --group build --quiet --upgrade \
	--universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
	--no-config --custom-compile-command "make lock"

lock:
	test -x $(VENV)/lock/bin/pip || $(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/$(PIP) uv
	$(COMPILE) --output-file requirements/run.txt
	$(COMPILE) --output-file requirements/test.txt --group test --constraint requirements/run.txt
	npm run lock --prefix $(NODE)
	npm run lock --prefix web

clean:
	rm -rf $(VENV) $(NODE)/node_modules web/node_modules src/strata/docs_site build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
