#!/usr/bin/env bash
# What a GPU does with packed weights, beside what its memory and cuBLAS do: products of every type, operations between
# them, and a language model. Compiled for the GPU here alone, so that all of it takes some minutes.
#
#   scripts/bench_gpu.sh [JOBS]
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${1:-$(nproc)}
PATH=$PATH:${CUDA_PATH:-/usr/local/cuda}/bin
command -v nvcc >/dev/null || { echo "bench-gpu: no nvcc; it comes with the CUDA toolkit" >&2; exit 1; }

cmake --preset cuda -D IMAGO_BENCH=ON -D IMAGO_CUDA_ARCHITECTURES="$(scripts/cuda_architecture.sh)" >/dev/null
cmake --build --preset cuda -j "$jobs" --target imago_bench_gpu imago_bench_gpu_lm
build-cuda/bench/imago_bench_gpu
build-cuda/bench/imago_bench_gpu_lm
