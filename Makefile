# `make demo` and `make test` are all a newcomer needs; both set up what is missing first.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
export JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION = 20
export NODE_NO_WARNINGS = 1
export CDK_DISABLE_CLI_TELEMETRY = 1
export PYTHONUNBUFFERED = 1

.PHONY: setup demo test test-long check lint types imports unit lock clean

setup: $(VENV)/.stamp node_modules/.stamp

# torch by itself, so that pip may take a CPU build; everything else by hash; NVRx 0.7.0 last, unpacked for
# the platform of its wheel: only its straggler detector needs what that tag promises (docs/limits.md).
$(VENV)/.stamp: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	sed -e 's/ \\$$//' -e '/--hash/d' requirements.lock > $(VENV)/constraints.txt
	$(BIN)/pip install --disable-pip-version-check -q -c $(VENV)/constraints.txt torch==2.13.0
	$(BIN)/pip install --disable-pip-version-check -q --no-deps --require-hashes -r requirements.lock
	$(BIN)/pip install --disable-pip-version-check -q --no-deps --upgrade \
	  --target "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
	  --platform manylinux_2_39_x86_64 --python-version 312 --implementation cp --only-binary=:all: \
	  nvidia-resiliency-ext==0.7.0
	$(BIN)/pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
	touch $@

node_modules/.stamp: package-lock.json
	npm ci --no-audit --no-fund --loglevel=error
	touch $@

demo: setup
	$(BIN)/steadfast demo

check: lint types imports unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint docker/Dockerfile

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

unit: setup
	$(BIN)/pytest -m unit -n 2

# Recoveries have time limits: they run one after another, with the machine to themselves.
RECOVERY := tests/trainer/recovery
test: check
	$(BIN)/pytest -m "not unit and not long" --ignore $(RECOVERY) -n 2 --dist loadfile --durations=15
	$(BIN)/pytest -m "not long" $(RECOVERY) --durations=15

test-long: setup
	$(BIN)/pytest -m long --durations=15

# The locks name no address and no CUDA wheel: torch decides about those itself.
NOT_LOCKED := torch triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti \
  nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand \
  nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink \
  nvidia-nvshmem-cu13 nvidia-nvtx
UV ?= uv
lock:
	$(UV) pip compile -q requirements.in -o requirements.lock --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header --no-annotate \
	  $(addprefix --no-emit-package ,$(NOT_LOCKED))
	$(UV) pip compile -q docker/requirements.in -o docker/requirements.lock --python-version 3.12 \
	  --python-platform x86_64-manylinux_2_39 --generate-hashes --no-header --no-annotate

clean:
	rm -rf $(VENV) node_modules cdk.out .local .mypy_cache .ruff_cache .pytest_cache
