#!/bin/sh
# Installs the packages of the named groups of packages.txt, only those that are missing.
#
#   scripts/setup.sh build test
#
# Needs root or sudo when something is missing, and nothing otherwise (one dpkg-query, some 20 ms).
# On a system without dpkg it prints what to install and stops; IMAGO_SETUP=skip passes over this script.
set -eu

[ "${IMAGO_SETUP:-}" != skip ] || exit 0
[ $# -gt 0 ] || { echo "usage: scripts/setup.sh GROUP..." >&2; exit 2; }
list=$(dirname "$0")/packages.txt

wanted=$(awk -v groups=" $* " '
  { sub(/#.*/, "") }
  NF == 2 { known[$1]; if (index(groups, " " $1 " ") && !seen[$2]++) print $2 }
  END {
    n = split(groups, asked, " ")
    for (i = 1; i <= n; ++i) if (!(asked[i] in known)) { print "unknown group " asked[i] > "/dev/stderr"; exit 2 }
  }' "$list")

say() { echo "setup: $*" >&2; }
one_line() { echo "$1" | tr '\n' ' '; }

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  say "this is not a Debian system, so nothing was installed. Install the equivalents of these Debian packages:"
  say "  $(one_line "$wanted")"
  say "then run again with IMAGO_SETUP=skip in the environment."
  exit 1
fi

# shellcheck disable=SC2086  # one word per package is meant
installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $wanted 2>/dev/null || true)
missing=
for package in $wanted; do
  case "
$installed
" in
    *"
$package installed
"*) ;;
    *) missing="$missing $package" ;;
  esac
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    say "missing:$missing"
    say "you are not root, and sudo is not installed: ask an administrator to run  apt-get install$missing"
    exit 1
  fi
  as_root=sudo
fi

say "installing$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=300 "$@" </dev/null; }
# The package lists of a fresh image are empty, those of an old one name files that are gone: refresh first.
# shellcheck disable=SC2086
if ! { apt update && apt install --no-install-recommends $missing; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  say "could not install$missing; the lines above say why"
  exit 1
fi
