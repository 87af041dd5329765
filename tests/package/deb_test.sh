#!/bin/sh
# Makes the Debian package, installs it into a root of its own and looks at what is there. Exit code 77: no dpkg tools.
#
#   deb_test.sh BUILD-FOLDER SCRATCH-FOLDER VERSION
set -eu
build=$1 scratch=$2 version=$3
command -v dpkg-shlibdeps >/dev/null && command -v cpack >/dev/null || { echo "no dpkg-shlibdeps or cpack"; exit 77; }

fail() { echo "deb: $*" >&2; exit 1; }
rm -rf "$scratch"
mkdir -p "$scratch"
(cd "$build" && cpack -G DEB -B "$scratch/made") >"$scratch/cpack.log" 2>&1 || { cat "$scratch/cpack.log"; fail "cpack failed"; }
deb=$(find "$scratch/made" -maxdepth 1 -name 'imago_*.deb')
[ -n "$deb" ] || fail "no package was made"

[ "$(dpkg-deb -f "$deb" Package)" = imago ] || fail "wrong name"
[ "$(dpkg-deb -f "$deb" Version)" = "$version" ] || fail "wrong version"
depends=$(dpkg-deb -f "$deb" Depends)
# Every library that the program asks for must come from a package that it depends on.
for library in $(objdump -p "$build/bin/imago" | awk '$1 == "NEEDED" { print $2 }'); do
  path=$(ldd "$build/bin/imago" | awk -v name="$library" '$1 == name { print $3 }')
  case $path in /*) ;; *) continue ;; esac
  owner=$(dpkg -S "$(realpath "$path")" 2>/dev/null | cut -d: -f1 | head -n 1)
  [ -z "$owner" ] || case ", $depends" in *", $owner"*) ;; *) fail "$library is of $owner, and Depends is: $depends" ;; esac
done

root=$scratch/root
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
: >"$root/var/lib/dpkg/status"
if [ "$(id -u)" -eq 0 ]; then
  dpkg --root="$root" --force-depends --force-script-chrootless -i "$deb" >"$scratch/dpkg.log" 2>&1 ||
    { cat "$scratch/dpkg.log"; fail "dpkg -i failed"; }
else
  dpkg-deb -x "$deb" "$root"
fi

for file in bin/imago include/imago/format.h lib/libimago.a lib/cmake/imago/imagoConfig.cmake lib/pkgconfig/imago.pc \
  share/man/man1/imago.1 share/bash-completion/completions/imago share/fish/vendor_completions.d/imago.fish \
  share/zsh/vendor-completions/_imago share/imago/README.md share/doc/imago/LICENSE; do
  found=$(find "$root/usr" -path "*/${file##*/}" | head -n 1)
  [ -e "$root/usr/$file" ] || fail "no /usr/$file${found:+ but $found}"
done
[ "$("$root/usr/bin/imago" --version)" = "imago $version" ] || fail "the installed program does not run"
# Installed, it finds the model that came with it, if one did.
if [ -e "$root/usr/share/imago/imago-20m.gguf" ]; then
  env -u IMAGO_MODEL "$root/usr/bin/imago" tokenize -p hello >/dev/null || fail "the bundled model is not found"
fi
echo "deb: $(basename "$deb"), $(du -k "$deb" | cut -f1) KiB, depends on $depends"
