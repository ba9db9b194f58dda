# Needs make and a Python of 3.11 to 3.13. `make PYTHON=/path/to/python run` names one.
.DEFAULT_GOAL := help
.PHONY: help run test lint lab build clean venv venv-dev venv-notebook

# The first Python in range that can make virtual environments. The second branch of the loop's end lets
# tools/install.py say what is wrong with the one there is.
IN_RANGE = import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3 python; do \
	if $$python -c '$(IN_RANGE)' >/dev/null 2>&1; then echo $$python; exit; fi; done; echo python3)
# A Python that the user named is taken even where .venv holds another one.
EXACT = $(if $(filter file,$(origin PYTHON)),,--exact)
INSTALL = "$(PYTHON)" tools/install.py $(EXACT)
BIN := .venv/bin

help:
	@echo "make run    install, then the whole course on the bundled tiny world: report in runs/"
	@echo "make test   install, then everything that CI runs: lint, types and the test suite"
	@echo "make lint   ruff (lint and format) and mypy"
	@echo "make lab    JupyterLab, to work through notebooks/"
	@echo "make build  build the notebooks of all lessons and check them"
	@echo "make clean  remove .venv and all caches; runs/ stays"

run: venv
	$(BIN)/python -m helpers course

test: lint
	HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_DATASETS_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist loadfile

lint: venv-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lab: venv-notebook
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root)

build: venv-notebook
	$(BIN)/python -m helpers build
	$(BIN)/python -m helpers build --check

venv:
	@$(INSTALL)

venv-dev:
	@$(INSTALL) --extra dev

venv-notebook:
	@$(INSTALL) --extra notebook

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find helpers solutions tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
