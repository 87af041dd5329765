#!/bin/sh
# Runs each program of a list that CMake wrote, one path per line; stops at the first that fails.
set -eu
[ -s "$1" ] || { echo "nothing is registered in $1"; exit 0; }
while IFS= read -r program; do
  echo "== $(basename "$program")"
  "$program" </dev/null
done <"$1"
