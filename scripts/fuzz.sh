#!/bin/sh
# Runs each fuzz target of a build for some seconds. What it learns stays in BUILD/corpus; a finding stops the run and
# lies beside it, ready to be replayed by the same target of the normal build.
#
#   scripts/fuzz.sh BUILD SECONDS
set -eu
build=$1
seconds=$2
[ -s "$build/fuzz/programs.txt" ] || { echo "no fuzz targets are registered"; exit 0; }
while IFS= read -r program; do
  name=$(basename "$program")
  corpus=$build/corpus/$name
  mkdir -p "$corpus" "$build/findings"
  seeds=
  [ ! -d "fuzz/corpus/$name" ] || seeds=fuzz/corpus/$name
  echo "== $name, $seconds s"
  # shellcheck disable=SC2086  # no seeds, no argument
  "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="$build/findings/$name-" "$corpus" $seeds </dev/null
done <"$build/fuzz/programs.txt"
