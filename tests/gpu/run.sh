#!/bin/sh
# Runs a program of GPU tests and notes how many of them were skipped. Exit code 77: all of them, and none failed.
#
#   run.sh PROGRAM COUNT-FILE [COMMAND...]     COMMAND, as compute-sanitizer and its options, is put before the program
set -u
program=$1 counts=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$@" "$program" >"$log" 2>&1
code=$?
cat "$log"
skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9][0-9]*\) tests\{0,1\}.*/\1/p' "$log")
passed=$(sed -n 's/^\[  PASSED  \] \([0-9][0-9]*\) tests\{0,1\}\..*/\1/p' "$log")
reason=$(sed -n 's/^.*no CUDA device: //p' "$log" | head -n 1)
mkdir -p "$(dirname "$counts")"
echo "${skipped:-0} ${reason:-a test says so}" >"$counts"
[ "$code" -eq 0 ] || exit "$code"
[ "${skipped:-0}" -eq 0 ] || [ "${passed:-0}" -ne 0 ] || exit 77
