# The front door. Everything real lives in CMake and scripts/; each target installs what is missing, then calls it.

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
# AUTO: GPU code is built where a GPU and nvcc are found, for that GPU. ON: built anyway. OFF: never.
CUDA ?= AUTO

.PHONY: all help test test-sanitized test-clone test-threads test-arm test-cuda test-cuda-sanitize demo bench bench-gpu bench-learning bench-quality fuzz tidy test-apart format install deb clean

all: configured ## build the program: build/bin/imago
	@cmake --build build -j $(JOBS) --target imago_cli

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' Makefile
	@echo "Settings: JOBS=$(JOBS) PREFIX=$(PREFIX) CUDA=$(CUDA) FUZZ_SECONDS=$(FUZZ_SECONDS)"

test: ## build, all tests, format and layering checks
	@scripts/setup.sh build test
	@scripts/setup.sh page $$(command -v npm >/dev/null || echo npm) || echo "make test: the tests that need a browser or npm are skipped"
	@scripts/test.sh $(JOBS)

test-sanitized: ## the tests again under clang's address and undefined-behaviour sanitizers, and each fuzz target for a second
	@scripts/setup.sh build test
	@scripts/test.sh --sanitized $(JOBS)

test-clone: ## after `make test`: the tests that use reference data again, as in a clone that has none beside it
	@rm -rf build/tests/results
	@IMAGO_REFERENCE=none ctest --preset release -j $(JOBS) -LE '^(check|fuzz|kernels)$$' -E '@ref$$'
	@tests/summary.sh build/tests/results

test-threads: ## the thread pool, the engine and the server under clang's thread sanitizer
	@scripts/setup.sh build test
	@cmake --preset threads >/dev/null
	@cmake --build --preset threads -j $(JOBS)
	@ctest --preset threads

test-arm: ## cross-build for 64-bit Arm and run its kernels' tests under QEMU
	@scripts/setup.sh build test arm
	@cmake --preset arm
	@cmake --build --preset arm -j $(JOBS)
	@ctest --preset arm -j $(JOBS)

test-cuda: ## compile the CUDA backend for one architecture and run its tests, or count them where there is no GPU
	@scripts/setup.sh build test
	@scripts/test_cuda.sh $(JOBS)

test-cuda-sanitize: ## the same tests under compute-sanitizer: memory errors and races; needs a GPU
	@scripts/setup.sh build test
	@scripts/test_cuda.sh --sanitize $(JOBS)

demo: all ## a tour of what the program can do, in a minute or two; leaves imago-demo.html
	@build/bin/imago demo

bench: ## build and run the benchmarks; TORCH=1 installs PyTorch (large) to compare with
	@scripts/setup.sh build test $(if $(filter-out 0,$(TORCH)),bench)
	@cmake --preset release -D IMAGO_TESTS=ON -D IMAGO_BENCH=ON
	@cmake --build build -j $(JOBS) --target imago_benches
	@scripts/each.sh build/bench/programs.txt

bench-gpu: ## what a GPU does with packed weights, beside its memory and cuBLAS: every type, and a model of 8 B
	@scripts/setup.sh build test
	@scripts/bench_gpu.sh $(JOBS)

bench-learning: ## train networks and a small decoder, and compare with what is promised
	@scripts/setup.sh build test
	@cmake --preset release -D IMAGO_TESTS=ON -D IMAGO_BENCH=ON
	@cmake --build build -j $(JOBS) --target imago_bench_learning
	@build/bench/imago_bench_learning

bench-quality: ## what precision costs a trained language model, beside llama.cpp and what is promised
	@scripts/setup.sh build test
	@cmake --preset release -D IMAGO_TESTS=ON -D IMAGO_BENCH=ON
	@cmake --build build -j $(JOBS) --target imago_bench_precision
	@build/bench/imago_bench_precision

fuzz: ## run every fuzz target for FUZZ_SECONDS
	@scripts/setup.sh build fuzz
	@test -e build-fuzz/build.ninja || cmake --preset fuzz
	@cmake --build build-fuzz -j $(JOBS) --target imago_fuzzers
	@scripts/fuzz.sh build-fuzz $(FUZZ_SECONDS)

tidy: ## run clang-tidy with the checks of .clang-tidy over the library and the program
	@scripts/setup.sh build test
	@cmake --preset release -D IMAGO_TESTS=ON -D IMAGO_BENCH=OFF -D IMAGO_CUDA=OFF >/dev/null
	@scripts/tidy.sh build $(JOBS)

test-apart: ## compile every source by itself, benchmarks too: finds missing includes
	@scripts/setup.sh build test
	@cmake --preset apart >/dev/null
	@cmake --build --preset apart -j $(JOBS)

format: ## format all sources in place
	@scripts/setup.sh format
	@scripts/format.sh

install: configured ## install program, manual, library and headers under PREFIX
	@cmake --build build -j $(JOBS) --target imago imago_about
	@cmake --install build --prefix $(PREFIX)

deb: ## make a Debian package of what `make install` installs, with GPU code for all chips if nvcc is found
	@scripts/setup.sh build deb
	@cmake --preset deb
	@cmake --build --preset deb -j $(JOBS) --target imago imago_about
	@cd build-deb && cpack -G DEB
	@ls build-deb/imago_*.deb

clean: ## remove everything that was built
	@rm -rf build build-apart build-asan build-threads build-cuda build-deb build-debug build-fuzz build-arm

# Ninja runs CMake again by itself when a CMake file changes; only the presets are not among those it watches.
# Tests and benchmarks stay out until `make test` or `make bench` has installed what they need.
build/build.ninja: CMakePresets.json | packages
	@cmake --preset release -D IMAGO_TESTS=OFF -D IMAGO_BENCH=OFF -D IMAGO_CUDA=$(CUDA)
	@touch $@

# `make test` leaves a build without CUDA behind where there was none before.
.PHONY: configured
configured: build/build.ninja
	@grep -q '^IMAGO_CUDA:STRING=$(CUDA)$$' build/CMakeCache.txt || cmake -D IMAGO_CUDA=$(CUDA) build

.PHONY: packages
packages:
	@scripts/setup.sh build
