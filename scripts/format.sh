#!/bin/sh
# Formats every source of the project in place; with --check changes nothing and fails if something would change.
# Exit code 77: the right clang-format is not here.
set -eu
cd "$(dirname "$0")/.."

# Versions of clang-format disagree with each other; the project keeps to that of Debian 12.
tool=$(command -v clang-format-14 || command -v clang-format || true)
case "$("$tool" --version 2>/dev/null || true)" in
  *"version 14."*) ;;
  *) echo "format: clang-format 14 is needed; scripts/setup.sh format installs it on Debian 12" >&2; exit 77 ;;
esac

sources() {
  if git rev-parse --git-dir >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh'
  else
    find apps bench examples fuzz include src tests \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0
  fi
}

case "${1:-}" in
  --check) sources | xargs -0 "$tool" --dry-run -Werror || { echo "format: run 'make format'" >&2; exit 1; } ;;
  "") sources | xargs -0 "$tool" -i ;;
  *) echo "usage: scripts/format.sh [--check]" >&2; exit 2 ;;
esac
