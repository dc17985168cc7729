# PYTHON is the interpreter for the environment. CUDA, 13 or 12, selects JAX's plugin and the
# assembler. PYTEST_ARGS replaces the options that distribute the tests over the cores.
PYTHON ?= python3
CUDA ?= 13
PYTEST_ARGS ?= -n auto --dist loadfile
BENCHMARKS ?= cold_build store warm_build parallel_build launch start
BENCH_ARGS ?=
DEMO_SPEC ?= specs/library/jax_kernels.yaml

TAG := $(shell $(PYTHON) -c 'import sys; sys.stdout.write("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VENV := .venv-$(TAG)$(if $(filter-out 13,$(CUDA)),-cuda$(CUDA))$(if $(OLDEST),-oldest)
BIN := $(VENV)/bin

# An environment is made again if its folder was moved, or if its interpreter no longer runs.
STALE := $(shell test -x $(BIN)/python && test "$$(cat $(VENV)/made-in 2>/dev/null)" = "$$(pwd -P)" \
	|| echo remake)

comma := ,

# $(call install,EXTRAS): install this folder with these extras, saying nothing unless it fails.
# Python compiles the modules that it imports: pip would compile thousands that nothing needs.
# After an interruption, `made-in` is missing, so that the environment is made again.
define install
@rm -f $(VENV)/made-in
@$(BIN)/python -m pip install --disable-pip-version-check --no-compile -e '.[$(1)]' \
	$(if $(OLDEST),-c $(VENV)/oldest.txt) >$(VENV)/pip.log 2>&1 || { \
	tail -n 15 $(VENV)/pip.log >&2; \
	echo "make: pip could not install pallasc[$(1)] into $(VENV); its last lines are above," \
		"all are in $(VENV)/pip.log. Check the network or the package index, then run make again." >&2; \
	exit 1; }
@pwd -P >$(VENV)/made-in
endef

.PHONY: help demo test test-oldest check lint types docs docs-check site coverage bench wheel clean preflight remake
.DEFAULT_GOAL := help

help: ## list the targets
	@echo "Usage: make TARGET [PYTHON=python3.12] [CUDA=12]"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1\t\2/p' Makefile | expand -t 15

demo: DEMO_STORE = --store build/demo-store
demo: $(VENV)/installed ## build JAX's own kernels from YAML and show the results
	$(BIN)/pallasc build $(DEMO_SPEC) $(DEMO_STORE)
	$(BIN)/pallasc inspect $(DEMO_SPEC) $(DEMO_STORE) -k "name=jax_hopper_matmul and m=1024" --plan
	$(BIN)/pallasc inspect $(DEMO_SPEC) $(DEMO_STORE) --resources
	$(BIN)/pallasc build $(DEMO_SPEC) $(DEMO_STORE)

test: $(VENV)/installed-dev ## run the tests on all cores (PYTEST_ARGS="-n auto -k name" for some)
	@$(BIN)/python -P -m pytest $(PYTEST_ARGS)

test-oldest: ## run the tests with the oldest version of each dependency that pyproject.toml allows
	@$(MAKE) --no-print-directory test OLDEST=1

check: lint types docs-check test ## run everything that must pass: lint, types, docs, tests

lint: $(VENV)/installed-dev ## find mistakes and wrong formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/installed-dev ## check the types
	@$(BIN)/mypy

docs: $(VENV)/installed-dev ## write stale pages of docs/ again, and fail if there were any
	@$(BIN)/python -P docs/generate.py

docs-check: $(VENV)/installed-dev
	@$(BIN)/python -P docs/generate.py --check

site: $(VENV)/installed-dev ## build docs/ as a site in build/site/html; nothing is fetched
	@$(BIN)/python -P docs/site/build.py --pictures

coverage: $(VENV)/installed-dev ## compile kernels for every entry of Pallas and record the results
	@$(BIN)/python -P tests/coverage/run.py --write
	@$(BIN)/python -P docs/generate.py --write

bench: $(VENV)/installed-dev ## run the benchmarks, or some (BENCHMARKS="remote farm"); fail on a missed goal
	@for name in $(BENCHMARKS); do echo "bench/$$name.py"; \
		PYTHONPATH=bench $(BIN)/python -P "bench/$$name.py" --check $(BENCH_ARGS) || exit 1; done

# zig compiles the C code, because it can link for an old glibc.
MACHINE := $(shell uname -m)
wheel: $(VENV)/installed-dev ## make the wheel for Linux with glibc 2.17 or newer, and any Python
	@CC="$(CURDIR)/$(BIN)/python -m ziglang cc -target $(MACHINE)-linux-gnu.2.17" \
		$(BIN)/python -m build --wheel -C--build-option=--plat-name=manylinux_2_17_$(MACHINE)

clean: ## remove the environments and everything that was built
	@rm -rf .venv-* build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +

preflight:
	@test -n "$(TAG)" || { \
		echo "pallasc needs Python 3.11 or newer, and $(PYTHON) does not run: pass PYTHON= its path." >&2; \
		exit 1; }
	@$(PYTHON) .ci/preflight.py

remake:

# Python brings an old pip, which takes twice as long to choose versions.
$(VENV)/made-in: pyproject.toml setup.py $(STALE) | preflight
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip 2>/dev/null || true
	$(if $(OLDEST),@sed -nE 's/^ +"([A-Za-z0-9_-]+)(\[[^]]*])?>=([0-9.]+).*/\1==\3/p' pyproject.toml >$(VENV)/oldest.txt)
	@pwd -P >$@

$(VENV)/installed: $(VENV)/made-in
	@echo "Installing pallasc, JAX and NVIDIA's assembler into $(VENV) (1.6 GB, a minute or two)..."
	$(call install,cuda$(CUDA))
	@touch $@

$(VENV)/installed-dev: $(VENV)/made-in
	@echo "Installing pallasc, JAX, NVIDIA's assembler and the tools for development into $(VENV)..."
	$(call install,cuda$(CUDA)$(comma)dev)
	@touch $@ $(VENV)/installed
