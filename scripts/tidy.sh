#!/usr/bin/env bash
# Runs clang-tidy with the checks of .clang-tidy over the library and the program, as they are compiled in BUILD: most
# sources a dozen at a time, which takes a fraction of the time that single files take.
#
#   scripts/tidy.sh [--changed] [BUILD [JOBS]]
#
# --changed: only what contains sources that differ from main, or from the last commit on main itself; at most 8 units, so
# that `make test` stays quick (`make tidy` checks everything). Exit code 77: clang-tidy 14 is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
changed=
if [ "${1:-}" = --changed ]; then
  changed=1
  shift
fi
build=${1:-build}
jobs=${2:-$(nproc)}
tool=$(command -v clang-tidy-14 || true)
[ -n "$tool" ] || { echo "tidy: clang-tidy 14 is needed; scripts/setup.sh test installs it on Debian 12" >&2; exit 77; }
[ -e "$build/compile_commands.json" ] || { echo "tidy: configure $build first" >&2; exit 1; }

# Objects for other instruction sets hold the same code as their neighbours; tests and benchmarks are left to the compilers.
mapfile -t units < <(sed -n 's/^ *"file": "\(.*\)".*/\1/p' "$build/compile_commands.json" |
  grep -E '/(src|apps)/' | grep -vE '/(avx2|avx512|neon)/|_test\.|/tests/' | sort -u)

if [ -n "$changed" ]; then
  base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || true)
  [ -n "$base" ] || { echo "tidy: not a git checkout with a branch main, so nothing counts as changed"; exit 0; }
  [ "$base" != "$(git rev-parse HEAD)" ] || base=$(git rev-parse -q --verify HEAD~1 || echo HEAD)
  mapfile -t sources < <(git diff --name-only --diff-filter=d "$base" -- 'src/*.cpp' 'apps/*.cpp')
  selected=()
  for unit in "${units[@]}"; do
    for source in "${sources[@]}"; do
      if [ "$unit" = "$PWD/$source" ] || { [[ $unit == */Unity/* ]] && grep -qF "$PWD/$source\"" "$unit"; }; then
        selected+=("$unit")
        break
      fi
    done
  done
  if [ "${#selected[@]}" -gt 8 ]; then
    echo "tidy: 8 of ${#selected[@]} changed units are checked; make tidy checks all"
    selected=("${selected[@]:0:8}")
  fi
  units=("${selected[@]}")
fi
[ "${#units[@]}" -gt 0 ] || { echo "tidy: nothing changed"; exit 0; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! printf '%s\0' "${units[@]}" | xargs -0 -n 1 -P "$jobs" "$tool" -quiet -p "$build" >"$log" 2>/dev/null; then
  cat "$log"
  echo "tidy: clang-tidy found the above" >&2
  exit 1
fi
echo "tidy: ${#units[@]} units are clean"
