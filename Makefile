# make demo · make test · make test-torch · make test-ray · make test-lowest · make check · make attack · make fuzz · make bench · make bench-ns3 · make bench-simgrid · make bench-scale ·
# make validate · make validate-testbed · make validate-gpu · make docs · make licences · make wheel · make test-wheel · make release-check:
# each sets up what it needs, in .venv; the testbed needs root.

PYTHON ?= python3
VENV := $(CURDIR)/.venv
export PATH := $(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
JOBS ?= 2

OLDEST_PYTHON ?= $(shell python3.10 -c '' 2>/dev/null && echo python3.10 || echo $(PYTHON))
LOWEST := .venv/lowest/bin
# What reads, prints, draws and stores: whatever calls the packages whose versions can differ.
LOWEST_TESTS := $(addprefix tests/test_,$(addsuffix .py,api buy cli compare formats lp plan presets profiling reading \
  report save scenario scenario_errors surface sweep tables traces))

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates -name '*.rs' -o -name Cargo.toml)

.PHONY: demo test test-torch test-ray test-lowest check attack fuzz bench bench-ns3 bench-simgrid bench-scale validate validate-testbed validate-gpu docs licences wheel test-wheel release-check upload clean

demo: .venv/.built
	gradtide demo -j $(JOBS)

test: .venv/.dev .venv/.built .venv/.browser .venv/.ns3
	cargo test --workspace --exclude gradtide-py
	cargo test --release -p gradtide-net --test packet_ns3
	cargo test --release -p gradtide-train --test simgrid
	python -m pytest -n $(JOBS) --dist loadfile -m "not torch and not ray"

# A few cases of every kind; FULL=1 runs all of them.
test-torch: .venv/.dev .venv/.torch
	GRADTIDE_REQUIRE_TORCH=1 python -m pytest -n $(JOBS) --dist loadfile -m "torch$(if $(FULL),, and not full)"

test-ray: .venv/.dev .venv/.ray
	GRADTIDE_REQUIRE_RAY=1 python -m pytest -m ray

# With the lowest versions that pyproject.toml promises, of Python too where there is a python3.10. TORCH=1 adds PyTorch's (5 GB);
# FULL=1 runs more of the tests that need it.
test-lowest: .venv/.lowest $(if $(TORCH),.venv/.lowest-torch)
	$(LOWEST)/python -m pytest -n $(JOBS) --dist loadfile -m "not slow and not torch and not ray and not browser" $(LOWEST_TESTS)
ifdef TORCH
	GRADTIDE_REQUIRE_TORCH=1 $(LOWEST)/python -m pytest -m "torch and not full" \
	  $(if $(FULL),,tests/test_profiling_torch.py tests/test_torch_ps.py)
endif

check: .venv/.dev .venv/.built
	cargo fmt --check
	rustfmt --check --edition 2024 crates/train/src/collective/algorithms/*.rs  # declared by a macro, unseen by cargo
	cargo clippy --workspace --all-targets -- -D warnings
	ruff check
	ruff format --check
	$(MAKE) -j$(JOBS) types-linux types-darwin types-win32
	python -m mypy.stubtest gradtide._core --ignore-disjoint-bases
	python -m pytest tests/test_layers.py
	mkdocs build --strict --quiet

types-%: .venv/.dev .venv/.built
	mypy --platform $* --cache-dir .mypy_cache/$*

# About an hour with two processes; SEED repeats an attack. INSTALLED=WHEEL attacks a wheel, by its absolute path, in place of the source tree.
attack: $(if $(INSTALLED),.venv/.python,.venv/.dev .venv/.built)
ifdef INSTALLED
	$(PYTHON) -m venv --clear .venv/installed
	.venv/installed/bin/pip install --quiet '$(INSTALLED)[lp,ray]'
	cd tests && env -u PYTHONPATH $(VENV)/installed/bin/python -m attack --installed --page --jobs $(JOBS) $(if $(SEED),--seed $(SEED))
else
	cd tests && python -m attack --page --jobs $(JOBS) $(if $(SEED),--seed $(SEED))
endif

# Ten minutes for each target, or SECONDS: two hours with two at a time.
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

# How costs grow with hosts and flows; PAGE=1 writes the table and the picture.
bench-scale: .venv/.dev .venv/.built
	python bench/scale.py $(if $(PAGE),--page)

# Runs ns-3 and SimGrid on their cases again and writes the tables of README and docs that compare with them: 10 minutes.
validate: .venv/.built
	@test -e /usr/include/ns3/core-module.h -a -e /usr/include/simgrid/s4u.hpp \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -qq -y --no-install-recommends libns3-dev libsimgrid-dev g++ >/dev/null; } \
	  || { echo "make: ns-3 and SimGrid are needed; on Debian: apt-get install libns3-dev libsimgrid-dev g++"; exit 1; }
	python validation/engines.py

validate-testbed: .venv/.torch
	python validation/testbed/plans.py --page
	python validation/testbed/servers.py --page
	python validation/testbed/neighbours.py --page

# Needs one GPU; DEVICE=cpu runs all but the calls to its streams.
validate-gpu: .venv/.torch
	python validation/gpu/train.py --device $(or $(DEVICE),cuda)

docs: .venv/.dev .venv/.built
	mkdocs build --strict

# The licences of the crates in the core, once more after a change of Cargo.lock.
licences: .venv/.python .venv/.cargo
	command -v cargo-about >/dev/null || cargo install --quiet --root $(VENV) cargo-about --features cli
	cargo about generate --locked --manifest-path crates/py/Cargo.toml --config tools/third_party.toml \
	  tools/third_party.hbs --output-file LICENSE-THIRD-PARTY

# In dist/: the sdist, and from it the wheel of this machine, or of TARGET as Rust calls it.
wheel: .venv/.release .venv/.cargo
	rm -rf dist
	python tools/wheels.py build $(if $(TARGET),--target $(TARGET))

# Installs the wheel in a Debian that has Python and no compiler, and runs the demo there. Needs root.
test-wheel: wheel target/bare-debian/.made
	python tools/wheels.py check
	tools/bare_debian.sh try target/bare-debian

# All of a release but the upload: docs/releasing.md.
release-check: .venv/.dev .venv/.built
	python tools/release.py check
	$(MAKE) check test-wheel
	python -m pytest -m made

# The workflow of a release runs this, with the right to upload that the index gives it for that run.
upload: .venv/.release
	twine upload --non-interactive dist/*

clean:
	rm -rf .venv target out site dist

# Set-up. Each stamp is made again when what it is made from changes.

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

# The package index has PyTorch with CUDA alone: 5 GB.
.venv/.torch: pyproject.toml | .venv/.built
	pip install --quiet --no-build-isolation --editable '.[torch]'
	@touch $@

# The core is the one that is built, for any Python: its place and what pip knows of it are copied.
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

# The report's tests open it in a real browser.
.venv/.browser: | .venv/.python
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; } \
	  || echo "make: no Chromium found: the tests that open a report are skipped (apt-get install chromium)"
	@touch $@

# The tests of `gradtide check` run a scenario in ns-3.
.venv/.ns3: | .venv/.python
	@test -e /usr/include/ns3/core-module.h \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -qq -y --no-install-recommends libns3-dev g++ >/dev/null; } \
	  || echo "make: no ns-3 found: the tests that run it are skipped (apt-get install libns3-dev g++)"
	@touch $@
