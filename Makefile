# Two commands on a fresh machine: `make demo` and `make test`. They need python3 >= 3.10 and make, nothing else.
# Everything they make lies in .venv and .demo (and uv's own cache); nothing here uses sudo or installs system packages.

PYTHON ?= python3
PY := .venv/bin/python
GOAL := $(or $(firstword $(MAKECMDGOALS)),demo)
PYTEST := -m pytest -p tests._ci -n 3 --dist loadfile --no-loadscope-reorder
NOTEBOOKS := -p tests._notebooks --nbval-lax --nbval-current-env notebooks

# The kernel of .venv goes before one that a person has installed for all environments.
export JUPYTER_PREFER_ENV_PATH := 1
# Else hundreds of processes would compile our modules, and the tests', each time anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo lab lab-folder check quick quick-panel quick-launch quick-others room test test-long test-hosts test-torch-tpu demo-torch-tpu lint extension byte-code format bench clean install

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
	@$(MAKE) GOAL=$(GOAL) --no-print-directory lab-folder
	@$(PY) scripts/bundle.py
	@echo "==> JupyterLab; the notebooks are copies, in .demo/lab"
	@cd .demo/lab && "$(CURDIR)/$(PY)" -m jupyterlab $(LAB_ARGS) 01_quickstart.ipynb

# TensorFlow is in a folder of its own (scripts/install.py), and so the kernel of .venv does not have it.
lab-folder:
	@$(PY) -m ipykernel install --sys-prefix --name tpu-magics-tensorflow --display-name "Python 3 (TensorFlow)" \
	    --env PYTHONPATH "$(CURDIR)/.venv/tensorflow" >/dev/null
	@mkdir -p .demo/lab/guides
	@cd notebooks && for each in *.ipynb guides/*.ipynb; do \
	    [ -e "$(CURDIR)/.demo/lab/$$each" ] || cp "$$each" "$(CURDIR)/.demo/lab/$$each"; \
	done

check: room install  ## what a change breaks, within a minute: lint, types, quick tests; ROOM=panel for those of one room
	@echo "==> lint, types, the tests that need no other process, and a few that do"
	@$(MAKE) GOAL=$(GOAL) --no-print-directory --jobs=4 --output-sync=target lint $(if $(ROOM),quick,quick-panel quick-launch quick-others)

# Three processes, each with some of the rooms. Each process of pytest-xdist would import and collect all tests (10 s).
quick: ROOMS := $(ROOM)
quick-panel: ROOMS := panel runs
quick-launch: ROOMS := backends launch magics
quick-others: ROOMS := $(filter-out panel runs backends launch magics,$(patsubst tests/%/,%,$(wildcard tests/[a-z]*/))) $(notdir $(wildcard tests/test_*.py))
quick quick-panel quick-launch quick-others:
	@$(PY) -m pytest -p tests._ci -p no:nbval -p no:xdist -q --durations=5 -m "smoke or (not process and not long)" $(addprefix tests/,$(ROOMS))

test:  ## lint, types, the extension, the notebooks and the tests
	@$(MAKE) GOAL=$(GOAL) --no-print-directory --jobs=2 --output-sync=target lint extension byte-code
	@echo "==> the tests, and the notebooks with nbval"
	@$(PY) $(PYTEST) $(NOTEBOOKS) -m "not long" --durations=20 tests $(PYTEST_ARGS)
	@echo "==> TorchTPU: the suites that it has to pass too"
	@$(PY) scripts/hosts.py torch-tpu

test-long: install  ## the tests that make test leaves out: full sizes, many ranks, killed hosts, random examples (26 minutes)
	@$(PY) scripts/bundle.py
	@$(PY) $(PYTEST) $(NOTEBOOKS) -m "long or hypothesis" --hypothesis-profile=long --durations=20 tests $(PYTEST_ARGS)

test-torch-tpu: install  ## the suites that TorchTPU has to pass too, in .venv/torch-tpu (Python 3.12 or 3.13)
	@$(PY) scripts/hosts.py torch-tpu

demo-torch-tpu: install  ## train the same small model on TorchTPU, in notebooks/09_torch_tpu.ipynb
	@$(PY) scripts/hosts.py --make torch-tpu
	@echo "==> running notebooks/09_torch_tpu.ipynb on XLA:CPU, without a browser"
	@TPU_MAGICS_RUNS="$(CURDIR)/.demo/.tpu_runs" PJRT_DEVICE=CPU \
	    .venv/torch-tpu/bin/python scripts/run_notebook.py notebooks/09_torch_tpu.ipynb .demo/09_torch_tpu.ipynb
	@echo "==> the run, as its run folder tells it"
	@.venv/torch-tpu/bin/python -m tpu_magics summary --runs .demo/.tpu_runs

test-hosts: install  ## the test suites with the packages of Colab's and of Kaggle's TPU image
	@$(PY) scripts/hosts.py

room:
	@[ -d "tests/$(ROOM)" ] || { echo "There is no room '$(ROOM)': ROOM is the name of a folder in tests."; exit 1; }

extension: install
	@echo "==> the JupyterLab extension: types, format, unit tests, bundle"
	@$(PY) scripts/bundle.py lint test
	@$(PY) scripts/bundle.py

# Without this, processes that start at the same time each compile the packages' modules, and the tests' own, to byte
# code. If something fails here, it fails in the tests too, with its reason.
byte-code: install
	@$(PY) -c "import jax, jupyterlab.labapp, nbconvert, ray" 2>/dev/null || true
	@$(PY) -m pytest -p no:xdist -q --collect-only tests >/dev/null 2>&1 || true
	@PYTHONPATH=.venv/tensorflow $(PY) -c "import tensorflow" 2>/dev/null || true

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
	@GOAL=$(GOAL) $(PYTHON) scripts/install.py torch,rehearsal,preflight,pods,dev
