# Two commands on a fresh machine: `make demo` and `make test`. They need python3 >= 3.10 and make, nothing else.
# Everything they make lies in .venv and .demo (and uv's own cache); nothing here uses sudo or installs system packages.

PYTHON ?= python3
PY := .venv/bin/python
GOAL := $(or $(firstword $(MAKECMDGOALS)),demo)
TENSORFLOW := $(CURDIR)/.venv/tensorflow
ALL_NOTEBOOKS := $(sort $(wildcard notebooks/[0-9]*.ipynb)) $(sort $(wildcard notebooks/guides/[0-9]*.ipynb))
TF_NOTEBOOKS := $(filter %_tensorflow.ipynb %_tensorflow_tpu.ipynb,$(ALL_NOTEBOOKS))
NOTEBOOKS := $(filter-out $(TF_NOTEBOOKS),$(ALL_NOTEBOOKS))
NBVAL := -m pytest -p tests._ci -n 2 --dist loadfile --nbval-lax --nbval-current-env

# The kernel of .venv goes before one that a person has installed for all environments.
export JUPYTER_PREFER_ENV_PATH := 1

.DEFAULT_GOAL := help
.PHONY: help demo lab test test-hosts lint format bench clean install

help:  ## show this list
	@echo "tpu_magics: make demo, make test and their relatives. Needs python3 >= 3.10 and make."
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1	\2/p' Makefile
	@echo
	@echo "  The first of them downloads about 5.2 GB into .venv; UV_TORCH_BACKEND=cpu make ... takes PyTorch's"
	@echo "  CPU build instead (about 1.3 GB in all), where PyTorch's own wheel index can be reached."
	@echo "  Another Python: make demo PYTHON=/path/to/python3"

demo: install  ## train a small model in notebooks/01_quickstart.ipynb and show the run
	@echo "==> running notebooks/01_quickstart.ipynb on XLA:CPU, without a browser"
	@TPU_MAGICS_RUNS="$(CURDIR)/.demo/.tpu_runs" PJRT_DEVICE=CPU \
	    $(PY) scripts/run_notebook.py notebooks/01_quickstart.ipynb .demo/01_quickstart.ipynb
	@echo "==> the run, as its run folder tells it"
	@$(PY) -m tpu_magics summary --runs .demo/.tpu_runs
	@echo "==> the executed notebook: .demo/01_quickstart.ipynb (to open it: $(PY) -m jupyter lab .demo/01_quickstart.ipynb)"

lab: install  ## JupyterLab with the extension, opened at the quickstart
	@$(PY) scripts/bundle.py
	@mkdir -p .demo/lab
	@for each in $(notdir $(wildcard notebooks/*.ipynb)); do \
	    [ -e ".demo/lab/$$each" ] || cp "notebooks/$$each" .demo/lab/; \
	done
	@echo "==> JupyterLab; the notebooks are copies, in .demo/lab"
	@cd .demo/lab && "$(CURDIR)/$(PY)" -m jupyterlab $(LAB_ARGS) 01_quickstart.ipynb

test: install lint  ## lint, types, the notebooks and all tests
	@echo "==> the JupyterLab extension: types, format, unit tests, bundle"
	@$(PY) scripts/bundle.py lint test
	@$(PY) scripts/bundle.py
	@echo "==> notebooks with nbval"
	@$(PY) $(NBVAL) $(NOTEBOOKS)
	@if [ -d "$(TENSORFLOW)" ] || [ -n "$$CI" ]; then \
	    PYTHONPATH="$(TENSORFLOW)" $(PY) $(NBVAL) $(TF_NOTEBOOKS); \
	else \
	    echo "==> skipped: $(TF_NOTEBOOKS) (there is no TensorFlow for this Python in .venv/tensorflow)"; \
	fi
	@echo "==> tests"
	@$(PY) -m pytest -p tests._ci -n 2 --dist loadfile $(PYTEST_ARGS)

test-hosts: install  ## the test suites with the packages of Colab's and of Kaggle's TPU image
	@$(PY) scripts/hosts.py

lint: install  ## ruff check, ruff format --check, mypy --strict
	@echo "==> ruff check"
	@$(PY) -m ruff check .
	@echo "==> ruff format --check"
	@$(PY) -m ruff format --check .
	@echo "==> mypy"
	@$(PY) -m mypy

format: install  ## let ruff sort imports and format the code, and prettier the extension's
	@echo "==> ruff"
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .
	@echo "==> prettier"
	@$(PY) scripts/bundle.py format

bench: install  ## the figures of the docs, made again
	@echo "==> benchmarks"
	@$(PY) -m tests.benchmarks

clean:  ## remove .venv, .hosts, .demo, what was built, caches and the tutorials' run folders
	@echo "==> removing .venv .hosts .demo .bench build dist notebooks/.tpu_runs, the extension's bundle and the tools' caches"
	@rm -rf labextension/node_modules labextension/lib labextension/build tpu_magics/labextension
	@rm -rf .venv .hosts .demo .bench build dist notebooks/.tpu_runs notebooks/guides/.tpu_runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

install:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	    echo "tpu_magics needs Python 3.10 or newer, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)"; \
	    echo "What to do: name a newer one: make $(GOAL) PYTHON=/path/to/python3.11"; exit 1; }
	@GOAL=$(GOAL) $(PYTHON) scripts/install.py torch,preflight,pods,dev
