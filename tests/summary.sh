#!/bin/sh
# Says how many tests were left out for want of a GPU or of reference data, from the results that GoogleTest wrote. Fails
# if reference data were missing for more than a tenth of all tests: a clone alone must be able to tell good from bad.
#
#   summary.sh RESULTS-FOLDER
set -eu
[ -d "$1" ] || { echo "no test results in $1" >&2; exit 1; }
cat "$1"/*.xml | awk '
  # Inside a test case: <skipped message="FILE:LINE&#x0A;REASON&#x0A;">
  /<testcase / { ++total }
  /<skipped message=/ {
    if (match($0, /no reference data: [^"&]*/)) {
      ++missing
      name = substr($0, RSTART + 19, RLENGTH - 19)
      if (!(name in seen)) { seen[name]; names = names (names == "" ? "" : ", ") name }
    } else if (match($0, /no CUDA device: [^"&]*/)) {
      ++gpu
      reason = substr($0, RSTART + 16, RLENGTH - 16)
    }
  }
  END {
    if (gpu > 0) printf "%d GPU tests skipped: %s\n", gpu, reason
    printf "%d of %d tests left out for want of reference data%s\n", missing, total, names == "" ? "" : ": " names
    if (missing * 10 > total) { print "that is more than a tenth"; exit 1 }
  }'
