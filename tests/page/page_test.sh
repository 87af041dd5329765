#!/usr/bin/env bash
# The page of `imago serve`: its sources have the right types, the built page is theirs, and it does in a browser what it
# promises. Exit code 77: there is no browser or no npm.
#
#   page_test.sh SOURCE-FOLDER SCRATCH-FOLDER PROGRAM
set -euo pipefail
source=$1 scratch=$2 program=$3

skip() { echo "skipped: $*"; exit 77; }
CHROMIUM=${CHROMIUM:-$(command -v chromium || true)}
[ -n "$CHROMIUM" ] || skip "there is no chromium; scripts/setup.sh page installs it"
command -v npm >/dev/null || skip "there is no npm; scripts/setup.sh npm installs it"

# Packages stay in the build folder for as long as the lock file says the same.
page=$source/apps/server/page
mkdir -p "$scratch"
cd "$scratch"
if ! cmp -s "$page/package-lock.json" installed.json; then
  rm -f installed.json
  cp "$page/package.json" "$page/package-lock.json" "$page/.npmrc" .
  npm ci --ignore-scripts --no-update-notifier >npm.log 2>&1 || { cat npm.log; skip "npm cannot install the packages"; }
  cp package-lock.json installed.json
fi
if grep -q '"resolved"' "$page/package-lock.json"; then
  echo "package-lock.json names the host that packages came from"
  exit 1
fi

rm -rf src dist tests
cp -r "$page/src" "$page/dist" "$page/build.mjs" "$page/tsconfig.json" .
cp -r "$source/tests/page" tests
npx tsc
node build.mjs --check
[ -e "$source/models/imago-20m.gguf" ] || skip "this checkout lacks the bundled model"
export CHROMIUM IMAGO_PROGRAM="$program" IMAGO_MODEL="$source/models/imago-20m.gguf"
node --test --test-reporter=spec tests/*_test.mjs
