#!/usr/bin/env bash
# Runs the npm clients of other servers against this one. Skipped, exit code 77, where Node.js 20 or the registry of npm
# is missing.
#
#   run.sh PROGRAM WORK-FOLDER
#
# The clients are installed below WORK-FOLDER, and again only when package-lock.json changes.
set -euo pipefail
source=$(cd "$(dirname "$0")" && pwd)
program=$1 work=$2
skip() { echo "clients: $1" >&2; exit 77; }

command -v node >/dev/null && command -v npm >/dev/null || skip "node and npm are needed"
[ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] || skip "Node.js 20 is needed, not $(node --version)"

mkdir -p "$work"
cd "$work"
if ! cmp -s "$source/package-lock.json" installed.json; then
  cp "$source/package.json" "$source/package-lock.json" .
  if ! npm ci --ignore-scripts --no-audit --no-fund --fetch-retries=1 >npm.log 2>&1; then
    npm ping --fetch-retries=0 >/dev/null 2>&1 || skip "the registry of npm cannot be reached"
    cat npm.log >&2
    exit 1
  fi
  cp package-lock.json installed.json
fi
# Packages are looked for beside the test.
cp "$source"/*.test.js "$source/server.js" .
IMAGO_PROGRAM=$program exec node --test --test-reporter=spec ./*.test.js
