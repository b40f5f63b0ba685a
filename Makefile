# Two commands do everything: `make demo` and `make test`. Both set up .venv first.
#
#   PYTHON=python3.12         another interpreter (3.11 or later)
#   BACKEND=cpu|gpu           vLLM's CPU or CUDA build; found out by itself
#   WORKERS=1                 tests at a time (2; most of them wait)
#   TORCH_INDEX=URL           where pip looks for PyTorch, such as PyTorch's own CPU index
#                             (without it, some machines download a CUDA build of 3 GB)
PYTHON ?= python3
VENV ?= .venv
BACKEND ?= $(shell test -e /dev/nvidiactl -o -e /dev/dxg && echo gpu || echo cpu)
TORCH_INDEX ?=
WORKERS ?= 2

BIN := $(VENV)/bin
READY := $(VENV)/.ready-$(BACKEND)

.PHONY: setup demo test lint docs browser clean help
.DEFAULT_GOAL := help

help:  ## Show this list.
	@grep -hE '^[a-z]+:.*##' Makefile | sed 's/:.*## */\t/' | expand -t 12

setup: $(READY)  ## Make .venv with everything in it.

$(READY): pyproject.toml tools/setup.sh
	@tools/setup.sh "$(PYTHON)" "$(VENV)" "$(BACKEND)" "$(TORCH_INDEX)"
	@touch "$@"

demo: $(READY)  ## Sweep the bundled model on real vLLM.
	@$(BIN)/vllm-frontier run demo-$(BACKEND)

lint: $(READY)  ## Check style and types.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

test: lint browser  ## Check style and types, then run all tests.
	@$(BIN)/python -m pytest -n $(WORKERS)

docs: $(READY)  ## Write docs/schema.md from the schema.
	@$(BIN)/python tools/schema_page.py

browser:
	@tools/browser.sh

clean:  ## Remove .venv and caches; results in outputs/ stay.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
