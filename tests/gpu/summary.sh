#!/bin/sh
# One line on what the runs of run.sh skipped, nothing if that was nothing.
#
#   summary.sh COUNT-FOLDER
set -eu
[ -d "$1" ] || exit 0
cat "$1"/* 2>/dev/null | awk '
  { total += $1; if ($1 > 0 && reason == "") { sub(/^[0-9]+ /, ""); reason = $0 } }
  END { if (total > 0) printf "%d GPU tests skipped: %s\n", total, reason }'
