#!/usr/bin/env bash
# The release build and its tests and checks; or the tests under sanitizers, and each fuzz target for a second.
#
#   scripts/test.sh [--sanitized] [JOBS]
#
# Goes on after a failed step where that still tells something, and ends with a summary.
set -euo pipefail
cd "$(dirname "$0")/.."
sanitized=
if [ "${1:-}" = --sanitized ]; then
  sanitized=1
  shift
fi
jobs=${1:-$(nproc)}
summary=()
failed=0

# step NAME COMMAND...: runs it, notes the outcome and the time.
step() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  if "$@"; then
    summary+=("$(printf 'ok      %4d s  %s' $((SECONDS - start)) "$name")")
  else
    summary+=("$(printf 'FAILED  %4d s  %s' $((SECONDS - start)) "$name")")
    failed=1
    return 1
  fi
}

# suite PRESET TITLE CMAKE-ARGUMENT...: configure, build, test; tests need a build, so the first failure ends the suite.
suite() {
  local preset=$1 title=$2
  shift 2
  step "$title: build" build "$preset" "$@" || return 0
  step "$title: tests" ctest --preset "$preset" -j "$jobs" || true
}

build() {
  local preset=$1 log
  shift
  log=$(mktemp)
  if ! cmake --preset "$preset" "$@" >"$log" 2>&1; then
    cat "$log"
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
  cmake --build --preset "$preset" -j "$jobs"
}

# A build that has CUDA keeps it; a new one does without, since nvcc takes longer than everything else (`make test-cuda`
# tests that). Benchmarks are built by .ci/run.
cuda=$(sed -n 's/^IMAGO_CUDA:STRING=//p' build/CMakeCache.txt 2>/dev/null || true)

if [ -n "$sanitized" ]; then
  name=test-sanitized
  suite asan "address and undefined-behaviour sanitizers, clang $(clang++ -dumpversion)"
  step "fuzzing, 1 s a target" scripts/fuzz.sh build-asan 1 || true
else
  name=test
  rm -rf build/tests/results
  suite release "release, $("${CXX:-c++}" --version | head -n 1)" -D IMAGO_TESTS=ON -D IMAGO_BENCH=OFF \
    -D IMAGO_CUDA="${cuda:-OFF}"
fi

echo
printf '%s\n' "${summary[@]}"
[ -n "$sanitized" ] || tests/summary.sh build/tests/results || failed=1
if [ "$failed" -ne 0 ]; then
  echo "make $name: FAILED after $SECONDS s"
  exit 1
fi
echo "make $name: all passed in $SECONDS s"
