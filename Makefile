# memlens: one command a chore. `make` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD := build
ATTACK_SECONDS ?= 1800
FUZZ_SECONDS ?= 600
FUZZ_TARGETS ?=
TEST_WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 1); [ $$n -gt 4 ] && n=4; echo $$n)

# What the package itself needs to build, and what the tests use on top.
BUILD_PACKAGES := g++ cmake ninja-build pkg-config libdw-dev libzstd-dev python3 python3-venv python3-dev
TEST_PACKAGES := binutils elfutils debuginfod~ clang llvm util-linux nodejs default-jdk-headless chromium~ \
  qemu-system-x86 qemu-system-common virtiofsd~ seabios busybox-static cpio kmod \
  lld gdb gfortran musl-tools~ systemtap-sdt-dev~ qemu-user~ gcc-aarch64-linux-gnu~ gcc-riscv64-linux-gnu~ gcc-powerpc64le-linux-gnu~ \
  libc6-dev-arm64-cross~ libc6-dev-riscv64-cross~ libc6-dev-ppc64el-cross~ libclang-rt-dev~ dwz~ \
  heaptrack~ valgrind~ libipt-dev~ linux-perf~ gawk~ strace~ time~ sqlite3~ xz-utils file~ libnuma-dev~ libjemalloc2~ libtcmalloc-minimal4~ libmimalloc2.0~ golang-go~ rustc~ \
  clang-16~ llvm-16-dev~ libclang-16-dev~ lld-16~ clang-19~ llvm-19-dev~ libclang-19-dev~ lld-19~ libomp-19-dev~ libclang-rt-16-dev~ libclang-rt-19-dev~ g++-aarch64-linux-gnu~ g++-riscv64-linux-gnu~ g++-powerpc64le-linux-gnu~ \
  clang-format-19~ clang-tidy-19~ node-typescript~ autoconf~ automake~ libtool~ mawk ccache~ libc6-i386~
JUDGE_PACKAGES := time gcc mawk gzip xz-utils sqlite3 lua5.4 perl python3-numpy~ git nodejs default-jdk-headless golang-go ripgrep libblas-test~ clustalo~ redis-server~ \
  postgresql~ hpcc~ openmpi-bin~ heaptrack valgrind qemu-user clang-19 llvm-19-dev lld-19 dpkg-dev tcl~
BENCH_PACKAGES := linux-perf/linux-tools-generic

NATIVE_SOURCES := $(shell find format native -name '*.c' -o -name '*.cpp' -o -name '*.h' -o -name '*.def') \
  CMakeLists.txt native/core/symbols/CMakeLists.txt native/pass/CMakeLists.txt pyproject.toml \
  src/memlens/view.py src/memlens/view_types.py src/memlens/results.py src/memlens/selection.py
WORKLOAD_SOURCES := $(wildcard workloads/*.c workloads/*.cpp workloads/*.h workloads/*.S) workloads/CMakeLists.txt

.PHONY: help
help: ## list the chores
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

# ---- set-up ---------------------------------------------------------------------
$(VENV)/.stamp-packages: pyproject.toml
	@tools/ensure-packages $(BUILD_PACKAGES)
	@mkdir -p $(VENV) && touch $@

$(VENV)/.stamp-test-packages: Makefile | $(VENV)/.stamp-packages
	@tools/ensure-packages $(TEST_PACKAGES)
	@touch $@

$(VENV)/.stamp-venv: pyproject.toml $(VENV)/.stamp-packages
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "memlens needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V)"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "installing Python packages"
	@$(BIN)/pip install -q --disable-pip-version-check 'scikit-build-core>=0.10' 'nanobind>=2.2' 'numpy>=1.26' 'pyarrow>=15' 'duckdb>=1.0' 'rich>=13.7'
	@touch $@

# Which LLVMs are installed with their headers: the package has plugins for them, and is built again when they change.
LIST_LLVMS := $(if $(MEMLENS_CORE_ONLY),echo none yet,ls -d /usr/lib/llvm-*/include/llvm/Passes/PassBuilder.h /usr/lib/llvm-*/include/clang/AST/AST.h 2>/dev/null)
.PHONY: always
$(VENV)/.llvms: always
	@mkdir -p $(VENV); test "$$($(LIST_LLVMS))" = "$$(cat $@ 2>/dev/null)" && test -e $@ || { $(LIST_LLVMS); true; } > $@

# Which Python modules there are: the editable install lists them, and is made again when one comes, goes or moves.
$(VENV)/.modules: always
	@mkdir -p $(VENV); find src/memlens -name '*.py' | LC_ALL=C sort > $@.new; cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(VENV)/.stamp-build: $(VENV)/.stamp-venv $(NATIVE_SOURCES) $(VENV)/.llvms $(VENV)/.modules
	@echo "building memlens"
	@$(BIN)/pip install -q --disable-pip-version-check --no-build-isolation -e .
	@cp $$(find $(VENV)/lib -name '_core.pyi' -o -name '_recorder.pyi') src/memlens/  # generated, for mypy and editors
	@$(BIN)/python -m compileall -q src/memlens  # also where PYTHONDONTWRITEBYTECODE is set: else each command compiles it all
	@touch $@

# Behind the build: one pip at a time.
$(VENV)/.stamp-test-python: pyproject.toml $(VENV)/.stamp-venv | $(VENV)/.stamp-build
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["test"], sep="\n")' > $(VENV)/test-requirements.txt
	@$(BIN)/pip install -q --disable-pip-version-check -r $(VENV)/test-requirements.txt
	@touch $@

# In this order: the compiler plugins need the LLVMs that are among these packages.
$(VENV)/.stamp-test: $(VENV)/.stamp-test-packages $(VENV)/.stamp-test-python $(VENV)/.stamp-build
	@touch $@

# On a new machine: packages for the tests are unpacked while everything that needs none of them is built.
.PHONY: prepared native-objects
prepared:
	@test -e $(VENV)/.stamp-test || MEMLENS_CORE_ONLY=1 $(MAKE) --no-print-directory -j2 $(VENV)/.stamp-test-packages native-objects $(BUILD)/workloads/.stamp $(VENV)/.stamp-test-python
	@$(MAKE) --no-print-directory $(VENV)/.stamp-test $(BUILD)/workloads/.stamp

native-objects: $(VENV)/.stamp-build
	@sh tools/native-tests $(BUILD)/native-tests --build

$(BUILD)/workloads/.stamp: $(VENV)/.stamp-venv $(WORKLOAD_SOURCES)
	@cmake -S workloads -B $(BUILD)/workloads -G Ninja >/dev/null
	@cmake --build $(BUILD)/workloads >/dev/null || cmake --build $(BUILD)/workloads
	@touch $@

.PHONY: build
build: $(VENV)/.stamp-build ## build memlens into .venv

# ---- what a person wants ------------------------------------------------------------
.PHONY: demo
demo: $(VENV)/.stamp-build $(BUILD)/workloads/.stamp ## set up, profile an example program, show what was found
	@$(BIN)/memlens record --force -o $(BUILD)/demo.memlens -- $(BUILD)/workloads/first_touch --mode serial --mib 256
	@$(BIN)/memlens report $(BUILD)/demo.memlens --html $(BUILD)/demo.html >/dev/null
	@echo
	@echo "The report is $(BUILD)/demo.html: open it in a browser. The capture is $(BUILD)/demo.memlens."
	@echo "Your own program: $(BIN)/memlens record -- PROGRAM"

.PHONY: test
test: prepared ## set up and run the tests
	@sh tools/native-tests $(BUILD)/native-tests
	@$(BIN)/python -m pytest -q -m "not slow" -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_FLAGS)

.PHONY: test-all
test-all: prepared ## the tests and the slow, exhaustive ones
	@sh tools/native-tests $(BUILD)/native-tests
	@$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_FLAGS)

.PHONY: lint
lint: $(VENV)/.stamp-test ## check style and types
	@$(BIN)/ruff check src tests benchmarks tools
	@$(BIN)/ruff format --check src tests benchmarks tools
	@$(BIN)/mypy
	@$(BIN)/python tools/lint_native.py $(BUILD)/tidy

.PHONY: bench
bench: $(VENV)/.stamp-build $(BUILD)/workloads/.stamp ## measure the overhead of record, beside perf; writes docs/overhead.md
	@tools/ensure-packages $(BENCH_PACKAGES)
	@$(BIN)/python benchmarks/overhead.py --memlens $(BIN)/memlens --build $(BUILD)/workloads --output docs/overhead.md --check

.PHONY: bench-real
bench-real: $(VENV)/.stamp-build ## measure what recording costs Debian's programs, beside perf and heaptrack; writes docs/overhead-real.md
	@tools/ensure-packages gcc python3 perl-base mawk gzip xz-utils coreutils sqlite3 bzip2 git grep heaptrack $(BENCH_PACKAGES)
	@$(BIN)/python benchmarks/real.py --memlens $(BIN)/memlens --output docs/overhead-real.md --check $(BENCH_FLAGS)

.PHONY: bench-alloc
bench-alloc: $(VENV)/.stamp-build ## measure the overhead of recording allocations, beside heaptrack; writes docs/overhead-alloc.md
	@tools/ensure-packages gcc g++ heaptrack
	@$(BIN)/python benchmarks/alloc.py --memlens $(BIN)/memlens --output docs/overhead-alloc.md --check

.PHONY: bench-emulate
bench-emulate: $(VENV)/.stamp-build $(BUILD)/workloads/.stamp ## measure counting under the emulator, beside valgrind's tools; writes docs/overhead-emulate.md
	@tools/ensure-packages qemu-user valgrind
	@$(BIN)/python benchmarks/emulate.py --memlens $(BIN)/memlens --build $(BUILD)/workloads --output docs/overhead-emulate.md --check $(BENCH_FLAGS)

.PHONY: bench-count
bench-count: $(VENV)/.stamp-build ## measure compile-time counting, beside clang's profilers and coverage; writes docs/overhead-count.md
	@tools/ensure-packages clang-19 llvm-19-dev lld-19 binutils
	@$(BIN)/python benchmarks/count.py --memlens $(BIN)/memlens --output docs/overhead-count.md --check $(BENCH_FLAGS)

.PHONY: bench-trace
bench-trace: $(VENV)/.stamp-build ## measure compile-time tracing, beside valgrind's lackey; writes docs/overhead-trace.md
	@tools/ensure-packages clang-19 llvm-19-dev lld-19 binutils
	@$(BIN)/python benchmarks/trace.py --memlens $(BIN)/memlens --output docs/overhead-trace.md --check $(BENCH_FLAGS)

.PHONY: bench-accuracy
bench-accuracy: $(VENV)/.stamp-test ## compare the emulator's counts with lackey's, also of a suite: BENCH_FLAGS="--gapbs DIR"; writes docs/accuracy.md
	@tools/ensure-packages gcc musl-tools qemu-user valgrind binutils
	@$(BIN)/python benchmarks/accuracy.py --memlens $(BIN)/memlens --output docs/accuracy.md --check $(BENCH_FLAGS)
	@$(BIN)/python benchmarks/count_accuracy.py --memlens $(BIN)/memlens --output docs/accuracy-count.md --check

.PHONY: bench-import
bench-import: $(VENV)/.stamp-build ## measure how fast lackey traces are imported; writes docs/import-speed.md
	@tools/ensure-packages gcc valgrind zstd
	@$(BIN)/python benchmarks/importing.py --memlens $(BIN)/memlens --output docs/import-speed.md

.PHONY: case-studies
case-studies: $(VENV)/.stamp-build ## make the tables of the MemGaze paper's case studies from workloads; writes docs/case-studies.md
	@tools/ensure-packages clang-19 llvm-19-dev lld-19
	@$(BIN)/python benchmarks/case_studies.py --output docs/case-studies.md $(BENCH_FLAGS)

.PHONY: bench-report
bench-report: $(VENV)/.stamp-build ## measure reports of 50 million accesses, 20 million faults and objects; BENCH_FLAGS="--before PYTHON" compares; writes docs/report-speed.md
	@tools/ensure-packages gcc heaptrack
	@$(BIN)/python benchmarks/report.py --output docs/report-speed.md --check $(BENCH_FLAGS)

.PHONY: bench-locality
bench-locality: $(VENV)/.stamp-build ## measure the locality engines, beside other cache simulators; writes docs/locality-speed.md
	@tools/ensure-packages gcc g++ valgrind
	@$(PYTHON) -m venv $(BUILD)/locality-peers && $(BUILD)/locality-peers/bin/pip install -q --disable-pip-version-check numpy libcachesim pycachesim || true
	@$(BIN)/python benchmarks/locality.py --peer-python $(BUILD)/locality-peers/bin/python --output docs/locality-speed.md $(BENCH_FLAGS)
	@$(BIN)/python benchmarks/long_capture.py --output docs/locality-speed.md

.PHONY: bench-locality-accuracy
bench-locality-accuracy: $(VENV)/.stamp-build ## compare sampled traces with whole ones, inferred classes with static ones; writes docs/locality-accuracy.md
	@tools/ensure-packages clang-19 llvm-19-dev lld-19 binutils
	@$(BIN)/python benchmarks/locality_accuracy.py --output docs/locality-accuracy.md --check $(BENCH_FLAGS)

.PHONY: judge
judge: $(VENV)/.stamp-test ## judge memlens by Debian's programs and outside oracles, about an hour; BENCH_FLAGS="--programs DIR" adds a suite; writes docs/judge.md
	@tools/ensure-packages $(JUDGE_PACKAGES)
	@$(BIN)/python benchmarks/judge.py --output docs/judge.md $(BENCH_FLAGS)

.PHONY: attack
attack: $(VENV)/.stamp-test ## attack memlens with damaged and hostile inputs, 30 minutes; ATTACK_SECONDS and ATTACK_FLAGS="--only captures --seed N"
	@$(BIN)/python benchmarks/attack.py --seconds $(ATTACK_SECONDS) $(ATTACK_FLAGS)

.PHONY: fuzz
fuzz: $(VENV)/.stamp-packages ## fuzz each native decoder under sanitizers, 10 minutes each; FUZZ_SECONDS and FUZZ_TARGETS="symbols jitdump"
	@tools/ensure-packages clang-19 libclang-rt-19-dev llvm-19
	@$(PYTHON) tools/fuzz.py run --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

.PHONY: docs
docs: $(VENV)/.stamp-build ## write the generated parts of the documentation
	@$(BIN)/python tools/generate_docs.py

.PHONY: clean
clean: ## remove everything that was built
	@rm -rf $(BUILD) $(VENV)
