# Every target installs its dependencies into .venv first, so each works in a fresh clone. JOBS sets the number of processes.
#
#   demo                  the main job: a model on a cluster, with its report
#   dev                   rebuild the Rust core incrementally for Python tests, after an edit
#   test, check           the tests; formatting, lints, types and the documentation's links
#   lint                  the first minutes of both: formatting, lints, unit tests of the crates
#   test-process          commands under signals, kills, limits, closed streams and full disks
#   test-torch, test-ray, test-lowest
#                         tests that need PyTorch or Ray, and tests against the oldest supported dependencies
#   attack, fuzz          random inputs in large numbers, with new seeds
#   bench, bench-ns3, bench-simgrid, bench-scale
#                         speed and memory
#   validate, validate-testbed, validate-gpu
#                         comparisons with ns-3 and SimGrid, with Linux queues (root) and on a GPU
#   docs, licences, wheel, test-wheel, release-check, upload
#                         the site and the release
#   clean                 delete everything that was built, .venv included

PYTHON ?= python3
VENV := $(CURDIR)/.venv
export PATH := $(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
JOBS ?= 2

OLDEST_PYTHON ?= $(shell python3.10 -c '' 2>/dev/null && echo python3.10 || echo $(PYTHON))
LOWEST := .venv/lowest/bin
# Tests of the code that calls third-party packages: parsing, printing, drawing, storing.
LOWEST_TESTS := $(addprefix tests/test_,$(addsuffix .py,api buy cli cli_studies compare formats formats_run kept_runs \
  layer_tables lp perfetto plan plan_accuracy plan_device plan_file presets profiling quantities reading report \
  report_tenants save scenario scenario_errors scenario_keys surface sweep sweep_ranking sweep_store tables trace_models traces))

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates -name '*.rs' -o -name Cargo.toml)

.PHONY: demo dev lint test test-process test-torch test-ray test-lowest check attack fuzz bench bench-ns3 bench-simgrid bench-scale validate validate-testbed validate-gpu docs licences wheel test-wheel release-check upload clean

demo: .venv/.built
	gradtide demo -j $(JOBS)

# `.venv/.built` stays out of date, so the next `make test` builds the optimised core again.
dev: .venv/.dev .venv/.cargo
	@test -e .venv/.built || $(MAKE) .venv/.built
	maturin develop --quiet --profile quick --skip-install

test: .venv/.dev .venv/.built .venv/.browser .venv/.ns3
	cargo test --workspace --exclude gradtide-py
	cargo test --release -p gradtide-net --test packet_ns3
	cargo test --release -p gradtide-train --test simgrid
	python -m pytest -n $(JOBS) --dist loadfile -m "not process and not torch and not ray"

test-process: .venv/.dev .venv/.built
	python -m pytest -n $(JOBS) --dist loadfile -m "process and not torch and not ray"

# By default a few cases of each kind; FULL=1 runs all of them.
test-torch: .venv/.dev .venv/.torch
	GRADTIDE_REQUIRE_TORCH=1 python -m pytest -n $(JOBS) --dist loadfile -m "torch$(if $(FULL),, and not full)"

test-ray: .venv/.dev .venv/.ray
	GRADTIDE_REQUIRE_RAY=1 python -m pytest -m ray

# Uses the oldest versions that pyproject.toml allows, and Python 3.10 if it is installed. TORCH=1 adds the oldest PyTorch
# (5 GB); FULL=1 then runs all PyTorch tests.
test-lowest: .venv/.lowest $(if $(TORCH),.venv/.lowest-torch)
	$(LOWEST)/python -m pytest -n $(JOBS) --dist loadfile -m "not slow and not torch and not ray and not browser" $(LOWEST_TESTS)
ifdef TORCH
	GRADTIDE_REQUIRE_TORCH=1 $(LOWEST)/python -m pytest -m "torch and not full" \
	  $(if $(FULL),,$(wildcard tests/test_profiling_torch*.py) tests/test_torch_ps.py)
endif

lint: .venv/.dev .venv/.cargo
	ruff check
	ruff format --check
	cargo fmt --check
	# Modules that a macro declares, which cargo fmt does not find.
	rustfmt --edition 2024 --check crates/net/src/packet/tcp/congestion/*.rs crates/train/src/collective/algorithms/*.rs
	cargo test --workspace --exclude gradtide-py --lib

check: lint .venv/.built
	cargo clippy --workspace --all-targets -- -D warnings
	python tools/trial_changes.py
	$(MAKE) -j$(JOBS) types-linux types-darwin types-win32
	python -m mypy.stubtest gradtide._core --ignore-disjoint-bases
	python -m pytest tests/test_layers.py
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet

types-%: .venv/.dev .venv/.built
	mypy --platform $* --cache-dir .mypy_cache/$*

# Takes about an hour with two processes. SEED=N repeats an earlier attack; INSTALLED=/path/to/wheel attacks a wheel instead of
# the source tree.
attack: $(if $(INSTALLED),.venv/.python,.venv/.dev .venv/.built)
ifdef INSTALLED
	$(PYTHON) -m venv --clear .venv/installed
	.venv/installed/bin/pip install --quiet '$(INSTALLED)[lp,ray]'
	cd tests && env -u PYTHONPATH $(VENV)/installed/bin/python -m attack --installed --page --jobs $(JOBS) $(if $(SEED),--seed $(SEED))
else
	cd tests && python -m attack --page --jobs $(JOBS) $(if $(SEED),--seed $(SEED))
endif

# Ten minutes per target (SECONDS=N changes that): about two hours with two processes.
fuzz: .venv/.dev .venv/.built .venv/.fuzz
	cd tests && python -m fuzz --page --seconds $(or $(SECONDS),600) --jobs $(JOBS)

bench: .venv/.dev .venv/.built
	cargo bench -p gradtide-train
	python bench/run.py
	python bench/ns3.py
	python bench/simgrid.py

bench-ns3: .venv/.built
	python bench/ns3.py

bench-simgrid: .venv/.built
	python bench/simgrid.py

# CPU time and memory over the number of hosts and flows; PAGE=1 updates the documentation.
bench-scale: .venv/.dev .venv/.built
	python bench/scale.py $(if $(PAGE),--page)

# Runs ns-3 and SimGrid on all comparison cases and updates the tables in README and docs. Takes 10 minutes.
validate: .venv/.built
	@test -e /usr/include/ns3/core-module.h -a -e /usr/include/simgrid/s4u.hpp \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -qq -y --no-install-recommends libns3-dev libsimgrid-dev g++ >/dev/null; } \
	  || { echo "make: ns-3 and SimGrid are needed; on Debian: apt-get install libns3-dev libsimgrid-dev g++"; exit 1; }
	python validation/engines.py

validate-testbed: .venv/.torch
	python validation/testbed/plans.py --page
	python validation/testbed/servers.py --page
	python validation/testbed/neighbours.py --page
	GRADTIDE_REAL_PACKETS=1 python -m pytest -q tests/test_emulate.py
	python validation/testbed/emulation.py

# Needs one GPU. DEVICE=cpu runs everything except the calls to CUDA streams.
validate-gpu: .venv/.torch
	python validation/gpu/train.py --device $(or $(DEVICE),cuda)

docs: .venv/.dev .venv/.built
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict

# Updates LICENSE-THIRD-PARTY; needed after a change of Cargo.lock.
licences: .venv/.python .venv/.cargo
	command -v cargo-about >/dev/null || cargo install --quiet --root $(VENV) cargo-about --features cli
	cargo about generate --locked --manifest-path crates/py/Cargo.toml --config tools/third_party.toml \
	  tools/third_party.hbs --output-file LICENSE-THIRD-PARTY

# Writes the source distribution and a wheel built from it to dist/: for this machine, or for TARGET (a Rust target triple).
wheel: .venv/.release .venv/.cargo
	rm -rf dist
	python tools/wheels.py build $(if $(TARGET),--target $(TARGET))

# Installs the wheel in a minimal Debian with Python and without a compiler, and runs the demo there. Needs root.
test-wheel: wheel target/bare-debian/.made
	python tools/wheels.py check
	tools/bare_debian.sh try target/bare-debian

# Every step of a release except the upload; see docs/releasing.md.
release-check: .venv/.dev .venv/.built
	python tools/release.py check
	$(MAKE) check test-wheel
	python -m pytest -m made

# Run by the release workflow, which holds a short-lived upload token of the package index.
upload: .venv/.release
	twine upload --non-interactive dist/*

clean:
	rm -rf .venv target out site dist

# Set-up: stamp files in .venv, each remade when one of its prerequisites changes.

.venv/.python:
	@command -v $(PYTHON) >/dev/null || { echo "make: Python is missing; on Debian: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "make: gradtide needs Python 3.10 or later; $(PYTHON) is older. Name another: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: Python's venv is missing; on Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	pip install --quiet --upgrade 'pip>=25.1' 'maturin>=1.16,<2'
	@touch $@

.venv/.cargo:
	@command -v cargo >/dev/null || { echo "make: Rust is missing; install it from https://rustup.rs"; exit 1; }
	@command -v cc >/dev/null || { echo "make: a linker is missing; on Debian: apt-get install build-essential"; exit 1; }
	@mkdir -p .venv && touch $@

.venv/.built: pyproject.toml $(RUST_SOURCES) | .venv/.python .venv/.cargo
	pip install --quiet --no-build-isolation --editable .
	@touch $@

# The package index only has PyTorch's CUDA build: 5 GB.
.venv/.torch: pyproject.toml | .venv/.built
	pip install --quiet --no-build-isolation --editable '.[torch]'
	@touch $@

# The core is an abi3 library, so this environment shares it: the path file and pip's metadata are copied.
.venv/.lowest: pyproject.toml tools/lowest.py | .venv/.built
	$(OLDEST_PYTHON) -m venv --clear .venv/lowest
	python tools/lowest.py df lp > .venv/lowest/wanted.txt
	$(LOWEST)/pip install --quiet -r .venv/lowest/wanted.txt hypothesis networkx protobuf psutil \
	  pytest pytest-timeout pytest-xdist
	cp -r .venv/lib/python3*/site-packages/gradtide.pth .venv/lib/python3*/site-packages/gradtide-*.dist-info \
	  .venv/lowest/lib/python3*/site-packages/
	$(LOWEST)/pip check
	@touch $@

.venv/.lowest-torch: .venv/.lowest
	python tools/lowest.py torch > .venv/lowest/wanted.txt
	$(LOWEST)/pip install --quiet -r .venv/lowest/wanted.txt
	@touch $@

.venv/.ray: pyproject.toml | .venv/.built
	pip install --quiet --no-build-isolation --editable '.[ray]'
	@touch $@

.venv/.fuzz: | .venv/.python .venv/.cargo
	@command -v c++ >/dev/null || { echo "make: libFuzzer needs a C++ compiler; on Debian: apt-get install g++"; exit 1; }
	command -v cargo-fuzz >/dev/null || cargo install --quiet --root $(VENV) cargo-fuzz
	@touch $@

.venv/.dev: pyproject.toml | .venv/.python
	pip install --quiet --group dev
	@touch $@

.venv/.release: pyproject.toml | .venv/.python
	pip install --quiet --group release
	@touch $@

target/bare-debian/.made:
	@[ "$$(id -u)" = 0 ] || { echo "make: only root can make a bare Debian; as anyone: make wheel, and python tools/wheels.py try"; exit 1; }
	@command -v debootstrap >/dev/null || { command -v apt-get >/dev/null && apt-get update -qq && apt-get install -qq -y --no-install-recommends debootstrap >/dev/null; } \
	  || { echo "make: debootstrap is missing; on Debian: apt-get install debootstrap"; exit 1; }
	tools/bare_debian.sh make target/bare-debian
	@touch $@

# Tests of the report open it in Chromium.
.venv/.browser: | .venv/.python
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; } \
	  || echo "make: no Chromium found: the tests that open a report are skipped (apt-get install chromium)"
	@touch $@

# Tests of `gradtide check` run scenarios in ns-3.
.venv/.ns3: | .venv/.python
	@test -e /usr/include/ns3/core-module.h \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -qq -y --no-install-recommends libns3-dev g++ >/dev/null; } \
	  || echo "make: no ns-3 found: the tests that run it are skipped (apt-get install libns3-dev g++)"
	@touch $@
