#!/bin/sh
# scripts/setup.sh against systems made of stand-ins: nothing is installed here.
#
#   setup_test.sh SCRIPTS-FOLDER
set -eu
scripts=$1
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
failures=0
skip=

fail() {
  echo "FAILED: $1"
  cat "$box/said"
  failures=$((failures + 1))
}
# run PATH ARGUMENT...: the exit code in $code, what was said in $box/said.
run() {
  code=0
  path=$1
  shift
  PATH="$path" IMAGO_SETUP="$skip" "$scripts/setup.sh" "$@" >"$box/said" 2>&1 || code=$?
}
said() { grep -q -e "$1" "$box/said"; }
tool() {
  printf '#!/bin/sh\n%s\n' "$2" >"$1"
  chmod +x "$1"
}

# A system without dpkg.
mkdir "$box/bare" "$box/debian"
for name in sh awk cat dirname env grep id mktemp rm tail tr; do ln -s "$(command -v $name)" "$box/bare/"; done
run "$box/bare" build
{ [ $code -eq 1 ] && said 'not a Debian system' && said ninja-build && said IMAGO_SETUP=skip; } || fail "no Debian: code $code"
skip=yes
run "$box/bare" build
[ $code -eq 1 ] || fail "only 'skip' skips: code $code"
skip=skip
run "$box/bare" build
{ [ $code -eq 0 ] && [ ! -s "$box/said" ]; } || fail "skip: code $code"
skip=
run "$box/bare" build nonsense
{ [ $code -eq 2 ] && said nonsense; } || fail "unknown group: code $code"

# A Debian where all but one package is there, one is known but removed, and the user is root.
tool "$box/debian/dpkg-query" 'shift 3
for p in "$@"; do case $p in cmake) ;; ninja-build) echo "$p config-files" ;; *) echo "$p installed" ;; esac; done
exit 1'
tool "$box/debian/apt-get" 'echo "$DEBIAN_FRONTEND: $*" >>"'"$box"'/apt"'
tool "$box/debian/id" 'echo 0'
run "$box/debian:$box/bare" build
[ $code -eq 0 ] || fail "install: code $code"
grep -q '^noninteractive: .*install --no-install-recommends cmake ninja-build$' "$box/apt" || fail "what was installed"

# The same as an ordinary user: through sudo where it is, else with advice.
tool "$box/debian/id" 'echo 1000'
run "$box/debian:$box/bare" build
{ [ $code -eq 1 ] && said 'apt-get install cmake ninja-build'; } || fail "no sudo: code $code"
tool "$box/debian/sudo" 'echo sudo >>"'"$box"'/apt"; exec "$@"'
run "$box/debian:$box/bare" build
{ [ $code -eq 0 ] && grep -q '^sudo$' "$box/apt"; } || fail "sudo: code $code"

# Nothing missing: nothing said, nobody asked.
tool "$box/debian/dpkg-query" 'shift 3; for p in "$@"; do echo "$p installed"; done'
rm "$box/apt"
run "$box/debian:$box/bare" build test fuzz format
{ [ $code -eq 0 ] && [ ! -s "$box/said" ] && [ ! -e "$box/apt" ]; } || fail "all there: code $code"

# Every line of the list names a group, a package and a reason.
awk '!/^(#|$)/ && !/^[a-z]+ +[a-z0-9.+-]+ +# ./ { print FILENAME ":" NR ": " $0; bad = 1 } END { exit bad }' \
  "$scripts/packages.txt" >"$box/said" || fail "packages.txt"

exit $((failures > 0))
