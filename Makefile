# every target makes .venv when it is missing; none needs anything but Python >= 3.10, make and a C compiler
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PEERS_BIN := .peers/bin
PEERS := .peers/.ready
# two test processes share the cores, so each keeps to one thread
TEST_PROCESSES ?= 2

.PHONY: help setup test lint reproduce bench gpu-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv and install, unless that is up to date

# torch comes first and alone: a CPU build is taken where one is offered, and nothing later replaces it.
# hatchling comes before the project so that it is built with the pinned one.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 10) and sys.exit("lrbench needs Python 3.10 or newer: make PYTHON=/path/to/it")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet -c constraints.txt hatchling
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[test]'
	@touch $@

test: $(READY) ## run every test that needs neither a GPU nor a network
	CUDA_VISIBLE_DEVICES= HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) $(ARGS)

lint: $(READY) ## style, types, who imports whom, and that every YAML file parses
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -c 'import pathlib, yaml; [yaml.safe_load(p.read_bytes()) for d in ("tasks", "configs", ".github") for p in pathlib.Path(d).rglob("*.y*ml")]'

# the report is written and compared with what was measured before, whatever became of the claims
reproduce: $(READY) ## run the suite configs/reproduce.yaml and its claims on the CPU; records and report.html in results/reproduce
	$(BIN)/lrbench run --suite reproduce --device cpu --workers 2 --out results/reproduce
	code=0; \
	$(BIN)/lrbench claims --suite reproduce --workers 2 --out results/reproduce || code=$$?; \
	$(BIN)/lrbench report results/reproduce --out results/reproduce/report.html || code=$$?; \
	$(BIN)/lrbench compare results/reference/cpu results/reproduce --fail-on regression || code=$$?; \
	exit $$code

bench: $(READY) $(PEERS) ## time the harness, all backends beside other packages, and the measuring core: hours, quiet machine
	$(BIN)/python bench/run.py
	-$(PEERS_BIN)/python bench/backends.py bars
	$(BIN)/python bench/backends.py all
	$(BIN)/python bench/acceptance.py

gpu-check: $(READY) ## what one GPU says of all this, in eight minutes at most; figures in results/reference/gpu
	$(BIN)/python bench/gpu_check.py --device cuda

# the packages that ours are measured beside, in an environment of their own
$(PEERS): bench/peers.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv .peers
	$(PEERS_BIN)/python -m pip install --quiet -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(PEERS_BIN)/python -m pip install --quiet -c constraints.txt -r bench/peers.txt hatchling
	$(PEERS_BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e .
	@touch $@

clean: ## remove .venv, caches and build products; results stay
	rm -rf .venv .peers .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
