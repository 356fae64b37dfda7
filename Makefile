# Every target makes what it needs: the first call creates .venv and installs, later ones start at once.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test test-slow test-oldest test-examples lint format bench bench-tuning docs results clean

help: ## say what each target does
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 14

demo: .venv/installed ## train on long-tailed digits, plain and class-balanced: a minute
	@$(BIN)/longtail demo

test: lint ## ruff, mypy, pytest with doctests: ten minutes; the page is tested where chromium and chromium-driver are installed
	$(BIN)/pytest --numprocesses auto --dist loadfile

test-slow: .venv/installed ## what make test leaves out: compiled networks, more processes killed, the wheel, quick benchmarks, the tests that PyTorch has for its own modules and operators
	$(BIN)/pytest -m slow --numprocesses auto --dist loadfile

test-oldest: .venv-oldest/installed ## library and lab with the oldest versions they allow (constraints-oldest.txt), in .venv-oldest
	.venv-oldest/bin/pytest --numprocesses auto --dist loadfile src tests --ignore tests/test_docs.py --ignore tests/benchmarks

test-examples: .venv/installed-examples ## examples/ in Lightning, Transformers, Keras, XGBoost and LightGBM: the first call installs them
	$(BIN)/pytest tests/examples -m ''

lint: .venv/installed ## ruff and mypy alone
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: .venv/installed ## let ruff put the code in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/installed-bench ## speed and memory beside the peers, into results/bench/: some twenty-five minutes on an idle machine
	$(BIN)/python -m benchmarks.losses --output results/bench
	$(BIN)/python -m benchmarks.linear_heads --output results/bench
	$(BIN)/python -m benchmarks.data --output results/bench
	$(BIN)/python -m benchmarks.training --output results/bench
	$(BIN)/python -m benchmarks.experiments --output results/bench
	$(BIN)/python -m benchmarks.features --output results/bench
	$(BIN)/python -m benchmarks.prototypes --output results/bench

bench-tuning: .venv/installed ## what pruning saves in tuning: half an hour
	$(BIN)/python -m benchmarks.tuning --output results/bench

results: .venv/installed ## the small protocol on long-tailed CIFAR from nothing but the data (longtail data fetch cifar10, cifar100), into results/: hours
	$(BIN)/python -m benchmarks.small
	$(BIN)/python -m benchmarks.small_tune

docs: .venv/installed ## the documentation site, into build/docs
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html"

clean: ## remove .venv and caches
	rm -rf .venv .venv-oldest .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=…" if sys.version_info < (3, 11) else 0)'
	@echo "Installing into .venv, PyTorch included: once, a minute or more …"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) --editable '.[cluster,export,dev,docs]'
	@touch $@

.venv/installed-bench: .venv/installed
	@$(INSTALL) --editable '.[cluster,export,dev,docs,bench]'
	@touch $@

.venv/installed-examples: .venv/installed
	@$(INSTALL) --editable '.[cluster,export,dev,docs,examples]'
	@touch $@

.venv-oldest/installed: pyproject.toml constraints-oldest.txt
	@$(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/pip install --quiet --disable-pip-version-check --constraint constraints-oldest.txt \
		--editable '.[export]' hypothesis mpmath pytest pytest-xdist
	@touch $@
