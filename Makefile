# make run    set up, then run the main job
# make test   set up, then check everything; FAST=1 skips the slow tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := pip install --quiet --disable-pip-version-check

.PHONY: run test fmt bench lock clean

run: $(VENV)/run.stamp
	$(BIN)/strata sim --seed 7 --workers 8 --hours 2 --faults all

test: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 $(if $(FAST),-x -q -m "not slow")

fmt: $(VENV)/test.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/run.stamp
	@for script in $(sort $(wildcard benchmarks/bench_*.py)); do $(BIN)/python $$script || exit 1; done

# A stamp is newer than what it was installed from, so a second make installs nothing.
$(VENV)/%.stamp: requirements/%.txt pyproject.toml
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) --require-hashes -r $<
	$(BIN)/$(PIP) --no-deps --no-build-isolation -e .
	touch $@

# The lock is resolved for every platform; pip picks by marker when it installs.
COMPILE = $(VENV)/lock/bin/uv pip compile pyproject.toml --group build --quiet --upgrade \
	--universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
	--no-config --custom-compile-command "make lock"

lock:
	test -x $(VENV)/lock/bin/pip || $(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/$(PIP) uv
	$(COMPILE) --output-file requirements/run.txt
	$(COMPILE) --output-file requirements/test.txt --group test --constraint requirements/run.txt

clean:
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
