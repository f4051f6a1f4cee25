# make demo, make test: each makes what it needs, in a folder of this tree, and no root is needed.
# PYTHON chooses the interpreter (3.9 or later): make test PYTHON=python3.9

PYTHON ?= python3
PYTHON_PATH := $(shell .ci/python $(PYTHON))
ifeq ($(PYTHON_PATH),)
$(error clgraft: got no interpreter $(PYTHON), expected one of Python 3.9 or later)
endif
VERSION := $(shell $(PYTHON_PATH) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV ?= .venv-$(VERSION)
BIN := $(VENV)/bin
# mxnet and caffe are empty where this Python cannot have them
TEST_EXTRAS := cpu,mxnet,caffe,bench,test
EXTRAS := $(TEST_EXTRAS),dev
WHEEL_TOOLS := .venv-$(VERSION)-wheels
DOCS_VENV := .venv-$(VERSION)-docs
PYTEST_ARGS ?=
DEMO_ARGS ?=

# Caffe's wheel needs the first one, and logs every layer without the second one.
export PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION := python
export GLOG_minloglevel := 2

.PHONY: help demo test test-all lint format bench install wheels clean

help:
	@echo "make demo    train a small net on real digits, original and swapped, in every framework that $(PYTHON) can have"
	@echo "make test    test every operator, the adapters and the command line: at most 6 minutes on two cores"
	@echo "             on the default OpenCL device (CLGRAFT_DEVICE=pocl, intel, gpu ... for another)"
	@echo "make test-all  run all tests: also random problems, whole nets, fuzzing, sanitizers, planted faults"
	@echo "make docs    build the documentation site into build/docs, without warnings (Python 3.11)"
	@echo "make pages   write what the pages take from figures, devices' reports and the parsers of the commands"
	@echo "make lint    ruff, ruff format, clang-format and mypy"
	@echo "make format  ruff format and clang-format on all files"
	@echo "make bench   time the operators against the frameworks' own"
	@echo "make wheels  build a wheel for x86-64 and one for aarch64 into dist/, each for every Python"

# $(call install,EXTRAS): pip compiles nothing of what it installs, because most of that is never imported, and builds
# with the packages that are there
define install
@$(PYTHON_PATH) -c 'import sys; assert sys.version_info >= (3, 9), "clgraft: got Python %d.%d, expected 3.9 or later" % sys.version_info[:2]'
@$(PYTHON_PATH) -c 'import os, sysconfig as s; p = s.get_paths()["include"] + "/Python.h"; assert os.path.exists(p), "clgraft: got no " + p + ", expected Python headers (on Debian: python3-dev)"'
@test -x $(BIN)/python || $(PYTHON_PATH) -m venv $(VENV) || { rm -rf $(VENV); echo "clgraft: got no venv module, expected one (on Debian: python3-venv)"; exit 1; }
$(PIP) --upgrade "pip<26" "setuptools<81" wheel "cffi>=1.15"
$(PIP) --no-build-isolation --editable ".[$(1)]"
endef
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

SOURCES := pyproject.toml setup.py clgraft/__init__.py $(wildcard core/abi/*.c core/abi/*.h core/abi/build.py mxnet_ops/engine/calls/*.[ch] mxnet_ops/engine/calls/build.py)

$(VENV)/installed: $(SOURCES)
	$(call install,$(EXTRAS))
	@touch $(VENV)/installed-for-tests $@

# what `make test` needs, which is half of it
$(VENV)/installed-for-tests: $(SOURCES)
	$(call install,$(TEST_EXTRAS))
	@touch $@

install: $(VENV)/installed

demo: install
	$(BIN)/python examples/digits/demo.py $(DEMO_ARGS)

# Two processes: with an empty cache most of the time goes to compilers, which have one thread. Were it pinned, both
# processes would compile on the first core; and they need no children to compile for them.
test test-all: export POCL_AFFINITY ?= 0
test test-all: export CLGRAFT_BUILD_PROCESSES ?= 0
# tests start hundreds of processes, which would compile the package's Python again and again
test test-all: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/installed-for-tests
	$(BIN)/python -m pytest tests -m "not exhaustive" --numprocesses 2 --dist worksteal --max-worker-restart 0 $(PYTEST_ARGS)

test-all: install
	$(BIN)/python -m pytest tests $(PYTEST_ARGS)

.PHONY: docs docs-python pages
pages: install
	$(BIN)/python benchmarks/report.py
	$(BIN)/python docs/devices.py
	$(BIN)/python docs/commands.py

docs: docs-python $(DOCS_VENV)/installed
	$(DOCS_VENV)/bin/python -m sphinx -q -E -W --keep-going -d build/docs-trees -b html docs build/docs
	$(DOCS_VENV)/bin/python -m sphinx -q -W --keep-going -d build/docs-trees -b linkcheck docs build/docs-links
	@echo "documentation: build/docs/index.html"

docs-python:
	@test "$(VERSION)" = 3.11 || { echo "clgraft: got Python $(VERSION), expected 3.11: make docs PYTHON=python3.11"; exit 1; }

# an environment of its own: the site has to build with its extra alone
$(DOCS_VENV)/installed: pyproject.toml setup.py clgraft/__init__.py
	@test -x $(DOCS_VENV)/bin/python || $(PYTHON_PATH) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip<26" "setuptools<81" wheel
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	@touch $@

# those that a build made begin with an underscore
C_FILES = find core kernels mxnet_ops caffe_layers plugins examples tests \
	\( -name '*.[ch]' -o -name '*.[ch]pp' -o -name '*.cl' \) ! -name '_*' -print0

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(C_FILES) | xargs -0 $(BIN)/clang-format --dry-run -Werror
	$(BIN)/mypy

format: install
	$(BIN)/ruff format .
	$(C_FILES) | xargs -0 $(BIN)/clang-format -i

bench: install
	$(BIN)/clgraft bench

$(WHEEL_TOOLS)/installed: pyproject.toml
	@test -x $(WHEEL_TOOLS)/bin/python || $(PYTHON_PATH) -m venv $(WHEEL_TOOLS)
	$(WHEEL_TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1,<26"
	$(WHEEL_TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --group wheels
	@touch $@

wheels: $(WHEEL_TOOLS)/installed
	$(WHEEL_TOOLS)/bin/python .ci/make_wheels.py dist

clean:
	rm -rf .venv-3.* build dist *.egg-info
