#!/bin/sh
# What users of the library get to see beyond its contract: nothing. The public headers are few, include each other and
# the standard library only, and define no macros; the library defines symbols in namespace imago only.
#
#   leaks_test.sh CXX INCLUDE-FOLDER LIBRARY
set -eu
cxx=$1 include=$2 library=$3
most=18
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "headers: $*" >&2; failed=1; }

count=$(find "$include/imago" -name '*.h' | wc -l)
[ "$count" -le "$most" ] || complain "$count public headers; at most $most are promised"

# Standard headers have neither a slash nor an extension; the C library's would bring names without a namespace.
grep -HE '^ *# *include' "$include"/imago/*.h | grep -vE '<[a-z_0-9]+>|"imago/[a-z]+\.h"' && complain "includes others than std and imago"

# Macros after including everything, less those after including only what std headers bring.
cat "$include"/imago/*.h | grep -oE '^ *# *include <[a-z_0-9]+>' | sort -u >"$work/std.h"
for header in "$include"/imago/*.h; do echo "#include \"imago/$(basename "$header")\""; done >"$work/all.h"
"$cxx" -std=c++20 -x c++ -dM -E "$work/std.h" | awk '{ print $2 }' | sed 's/(.*//' | sort -u >"$work/before"
"$cxx" -std=c++20 -I "$include" -x c++ -dM -E "$work/all.h" | awk '{ print $2 }' | sed 's/(.*//' | sort -u >"$work/after"
comm -13 "$work/before" "$work/after" | grep -v '^IMAGO_' >"$work/macros" && complain "macros without the prefix: $(tr '\n' ' ' <"$work/macros")"

# Strong symbols: those of templates and inline functions of others may be weak copies. nvcc makes a stub for each kernel, whose
# name holds the kernel's, mangled.
nm -C --defined-only --extern-only "$library" 2>/dev/null | awk '$2 ~ /^[TDBRSGC]$/ { $1 = $2 = ""; print substr($0, 3) }' |
  sed -E 's/^(typeinfo( name)? for|vtable for|VTT for|guard variable for|non-virtual thunk to|construction vtable for) //' |
  grep -vE '^(\[clone|imago::|operator.*imago::|__device_stub__Z.*5imago)|(^| )imago::' >"$work/symbols" && complain "symbols outside namespace imago: $(head -n 5 "$work/symbols" | tr '\n' ';')"
exit $failed
