#!/bin/sh
# An inline function that is compiled with -mavx512f and shared with other files may be the copy that the linker keeps, and
# then an older CPU dies in code that has nothing to do with kernels. So every symbol that such an object defines for
# others must lie in imago::kernels::ISA.
#
#   check.sh NM ISA OBJECT...
set -eu
nm=$1
isa=$2
shift 2
[ $# -gt 0 ] || { echo "sealed: no objects of $isa" >&2; exit 1; }

# Itanium names of things in the namespace: plain or const functions, and their statics, guards, tables and type facts.
own="^_Z(Z|GV|GR|TV|TI|TS)*N[rVKRO]*5imago7kernels${#isa}${isa}"
# Made by the compilers themselves, without vector instructions: the pointer to the exception routine, and a call of
# std::terminate.
compilers='^(DW\.ref\.__gxx_personality_v0|__clang_call_terminate)$'

leaks=$("$nm" --defined-only --extern-only "$@" | awk -v own="$own" -v compilers="$compilers" '
  NF == 3 && $3 !~ own && $3 !~ compilers { print ($2 ~ /[WVwvu]/ ? "weak:" : "global:"), $3 }' | sort -u)
[ -n "$leaks" ] || exit 0
echo "sealed: outside imago::kernels::$isa, in an object with its instruction set:" >&2
echo "$leaks" | c++filt >&2
exit 1
