# make run    install into .venv and open the chat       make test   all checks and tests
# make check  lint, types, layers                         make soak   statistics, grids, long random lives
# make quick  the tests while you work                 make test-alone   measuring, wheels, licences, docs
# make bench  the figures of benchmarks/RESULTS.md        make lock   pin the versions that were tested
# make dist   the wheel and the source archive            make test-metal   what only a Mac can show
# make package   the program that needs no Python         make smoke  try it in an empty environment
# make docs   the documentation, in build/docs            make catalogue  which of its entries are out of date
# make test-engines   with real vLLM, Transformers and llama-server, 4 GB     make house  the source, in figures

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
LOCK := packaging/constraints.txt
# pip with a progress line, and with the cause of a failure instead of all its output.
INSTALL := $(BIN)/python packaging/install.py

# llama.cpp is built from source. RPC gives it a device like a GPU on any machine, which tests need; to support a
# GPU, add its flag: CMAKE_ARGS="-DGGML_RPC=ON -DGGML_CUDA=ON" make run
# The file named last leaves out what nothing here uses, which saves a third of the time. pip keeps a wheel that it
# has built, whatever its flags were; one without libmtmd, from before edgechat could see pictures, is rebuilt.
export CMAKE_ARGS ?= -DGGML_RPC=ON -DCMAKE_PROJECT_llama_cpp_INCLUDE='$(CURDIR)/packaging/binary/llama.cmake'
QUESTION := What is edgechat?

# How many processes run the tests, one file at a time each; half of the time, they wait for workers and terminals.
# The assertions that pytest has rewritten are kept for the next run, since rewriting them takes twelve seconds.
WORKERS ?= 4
unexport PYTHONDONTWRITEBYTECODE

# What packaged programs compute with, see packaging/binary/llama.py: cpu, vulkan, cuda, metal.
FLAVOUR ?= cpu
PACKAGE := build/package/$(FLAVOUR)
# Rebuilt if a different version is pinned, but not at every change of the lock file.
LLAMA := $(PACKAGE)/wheels/$(shell sed -n 's/^llama_cpp_python==//p' $(LOCK))

# numpy's wheel contains a BLAS, a quarter of the program's size, for products of matrices that nothing here computes.
NUMPY := $(PACKAGE)/numpy/$(shell sed -n 's/^numpy==//p' $(LOCK))
NO_BLAS := -Csetup-args=-Dblas=none -Csetup-args=-Dlapack=none -Csetup-args=-Dallow-noblas=true

.PHONY: run check quick test test-alone test-times test-metal test-engines soak bench docs catalogue house lock dist package
.PHONY: smoke clean

# The app if there is a terminal; otherwise, one question to the guide.
run: $(VENV)/.installed
	@if [ -t 0 ] && [ -t 1 ]; then exec $(BIN)/edgechat; \
	else echo "> $(QUESTION)"; exec $(BIN)/edgechat run guide "$(QUESTION)" </dev/null; fi

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Each file of tests loads its models once, so it stays with one process; tests/conftest.py sorts the files.
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

quick: $(VENV)/.installed-dev
	$(PYTEST) -m "not soak and not alone and not further and (quick or not slow)"

# The checks run alongside the tests, and report what they found after them.
test: $(VENV)/.installed-dev
	@mkdir -p build; $(MAKE) --no-print-directory check >build/check.log 2>&1 & check=$$!; \
	$(PYTEST); tests=$$?; \
	wait $$check; checked=$$?; cat build/check.log; exit $$((tests + checked))

# One after another: what measures the machine, or tests what is published, built or read by other programs.
test-alone: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -m alone

# Where the time of `make test` goes, by kind of test, by file and by test.
TIMES := build/test-times.jsonl
test-times: $(VENV)/.installed-dev
	@mkdir -p $(dir $(TIMES)) && rm -f $(TIMES)
	$(PYTEST) -p tests.times --times $(TIMES); status=$$?; $(BIN)/python -m tests.times $(TIMES); exit $$status

# What only a Mac with Apple Silicon can show: the tests of the MLX backend and its speed, on its GPU.
test-metal: $(VENV)/.installed-dev
	EDGECHAT_METAL=1 $(BIN)/python -m pytest -q tests/engine -k mlx
	EDGECHAT_METAL=1 $(BIN)/python -m benchmarks.streaming --backend mlx
	EDGECHAT_METAL=1 $(BIN)/python -m benchmarks.speculation live --weights 4bit --pairs 0,0.05,useless

# Real engines for processors, each in its own environment: 4 GB, installed once.
ENGINES := $(CURDIR)/build/engines
LLAMA_SERVER := $(or $(EDGECHAT_LLAMA_SERVER),$(ENGINES)/llama/build/bin/llama-server)
test-engines: $(VENV)/.installed-dev
	$(BIN)/python -m tests.engines.make $(ENGINES)
	EDGECHAT_ENGINES=$(ENGINES) EDGECHAT_LLAMA_SERVER=$(LLAMA_SERVER) $(BIN)/python -m pytest -q -rsx -m engines tests/engines
	EDGECHAT_LLAMA_SERVER=$(LLAMA_SERVER) $(BIN)/python -m pytest -q -rsx -m "not engines" \
		tests/engine/remote/test_llama_server.py tests/engine/worker/test_reranking.py tests/cli/test_engines.py

# One after another, since these tests measure too; then the properties again, with fifty times as many examples.
soak: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -m soak --timeout 3600 -o faulthandler_timeout=0
	$(BIN)/python -m pytest -q -m hypothesis --hypothesis-profile soak --timeout 3600 -o faulthandler_timeout=0

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.streaming
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.keypress
	$(BIN)/python -m benchmarks.pull
	$(BIN)/python -m benchmarks.batching
	$(BIN)/python -m benchmarks.sampling
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.prefill
	$(BIN)/python -m benchmarks.reopen
	$(BIN)/python -m benchmarks.overflow
	$(BIN)/python -m benchmarks.edits
	$(BIN)/python -m benchmarks.turns
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.app
	$(BIN)/python -m benchmarks.fleet check
	$(BIN)/python -m benchmarks.fleet one
	$(BIN)/python -m benchmarks.fleet routers
	$(BIN)/python -m benchmarks.fleet apart

# Strict: a broken link or anchor fails.
docs: $(VENV)/.installed-dev
	$(BIN)/python -m mkdocs build --strict

# Fails if an entry has not been checked for two months, or differs from what the hub says.
catalogue: $(VENV)/.installed-dev
	@$(BIN)/python packaging/catalogue/stale.py

# `packaging/house.py --imports --private` says more.
house: $(VENV)/.installed-dev
	@$(BIN)/python packaging/house.py

# Leaves dist/edgechat-VERSION-OS-ARCH and its archive. The first time, llama.cpp is compiled for every processor.
package: $(PACKAGE)/.installed
	$(PACKAGE)/venv/bin/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .
	$(PACKAGE)/venv/bin/python packaging/binary/package.py --flavour $(FLAVOUR)

smoke: $(VENV)/.installed-dev package
	$(BIN)/python -m pytest -q tests/frozen \
	    --program "$$($(PACKAGE)/venv/bin/python packaging/binary/package.py --flavour $(FLAVOUR) --where)"

lock: $(VENV)/.installed-dev
	$(PIP) freeze --exclude-editable >$(LOCK)

# The source archive, and the wheel built from it, so that what is published has everything that a build needs.
dist: $(VENV)/.installed-dev
	$(BIN)/python -P -m build --no-isolation --outdir dist .

clean:
	rm -rf $(VENV) build dist .models .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(LLAMA): packaging/binary/llama.py packaging/binary/llama.cmake
	@echo "Building llama.cpp for all processors of this kind, which takes a quarter of an hour the first time."
	rm -rf $(PACKAGE)/wheels
	$(PYTHON) packaging/binary/llama.py $(PACKAGE)/wheels --flavour $(FLAVOUR)
	@touch $@

$(NUMPY):
	@echo "Building numpy without BLAS, which takes five minutes the first time."
	rm -rf $(@D)
	$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-binary numpy $(NO_BLAS) -w $(@D) numpy==$(@F)
	@touch $@

$(PACKAGE)/.installed: pyproject.toml $(LOCK) $(LLAMA) $(if $(filter Linux,$(shell uname -s)),$(NUMPY))
	$(PYTHON) -m venv --clear $(PACKAGE)/venv
	$(PACKAGE)/venv/bin/pip install --quiet --disable-pip-version-check -c $(LOCK) \
	    $(PACKAGE)/wheels/*.whl $$(ls $(PACKAGE)/numpy/*.whl 2>/dev/null) '.[documents,package,server,tools]'
	@touch $@

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "edgechat needs Python 3.11 or newer: make PYTHON=python3.12 run")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.installed: pyproject.toml $(LOCK) packaging/binary/llama.cmake | $(VENV)/bin/python
	@echo "Installing edgechat; llama.cpp is compiled for this machine, which takes some minutes the first time."
	@$(INSTALL) -c $(LOCK) -e '.[documents,server,tools]'
	@$(BIN)/python -c 'import llama_cpp.mtmd_cpp' 2>/dev/null || { $(PIP) cache remove llama_cpp_python >/dev/null 2>&1; \
	    $(INSTALL) -c $(LOCK) --no-deps --force-reinstall llama-cpp-python; }
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(LOCK) $(VENV)/.installed
	$(PIP) install --quiet -c $(LOCK) -e '.[dev]'
	@touch $@
