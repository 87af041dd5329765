#!/usr/bin/env bash
# The CUDA backend: compiled for one architecture, its tests run where there is a GPU, counted as skipped elsewhere.
#
#   scripts/test_cuda.sh [--sanitize] [JOBS]
#
# --sanitize runs them under compute-sanitizer: memory errors, then races. Which architecture: cuda_architecture.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
sanitize=
if [ "${1:-}" = --sanitize ]; then
  sanitize=1
  shift
fi
jobs=${1:-$(nproc)}
PATH=$PATH:${CUDA_PATH:-/usr/local/cuda}/bin
command -v nvcc >/dev/null || { echo "test-cuda: no nvcc, so there is nothing to test" >&2; exit 1; }

cmake --preset cuda -D IMAGO_CUDA_ARCHITECTURES="$(scripts/cuda_architecture.sh)" >/dev/null
cmake --build --preset cuda -j "$jobs" --target imago_cuda_tests

if [ -z "$sanitize" ]; then
  rm -rf build-cuda/tests/results
  ctest --test-dir build-cuda -L cuda --output-on-failure  # one at a time: they share the GPU's memory
  tests/summary.sh build-cuda/tests/results
  exit
fi

tool=$(command -v compute-sanitizer) || { echo "test-cuda: no compute-sanitizer; it comes with the CUDA toolkit" >&2; exit 1; }
failed=0
for program in build-cuda/tests/*_cuda_test; do
  for check in memcheck racecheck; do
    echo "== $check $(basename "$program")"
    # Tests that provoke errors on purpose, to see how they are reported, would be reported here as well.
    GTEST_BRIEF=1 GTEST_FILTER="-*Refused*:*Fail*" "$tool" --tool "$check" --error-exitcode 9 "$program" || failed=1
  done
done
exit $failed
