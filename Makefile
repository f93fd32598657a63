# Each target works on a fresh clone with Python 3.11 or newer, make and pip: the first one to run makes .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: setup demo test lint bench clean

setup: .venv/.installed

# constraints.txt holds the versions that CI runs. For a CPU build of torch set PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[ray,mlflow,report,gguf,ssr,dev]'
	touch $@

demo: setup
	$(BIN)/forever demo

# A file a process, as files share what they train. Ray's clusters take all cores, so their tests come after the others.
test: setup
	$(BIN)/pytest -m "not ray" --numprocesses auto --dist loadfile
	$(BIN)/pytest -m ray

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: setup
	$(BIN)/python benchmarks/update.py

clean:
	rm -rf .venv build *.egg-info
