#!/bin/sh
# Prints the architecture to compile CUDA code for: IMAGO_CUDA_ARCHITECTURES from the environment, else that of the GPU of
# this machine, else Hopper. With --gpu prints only that of the GPU, or nothing.
set -eu
architecture=
[ "${1:-}" = --gpu ] || architecture=${IMAGO_CUDA_ARCHITECTURES:-}
if [ -z "$architecture" ] && command -v nvidia-smi >/dev/null; then
  # Without a driver nvidia-smi prints its complaint on standard output: only a number such as 9.0 is an answer.
  found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed -n '1s/^\([0-9]*\)\.\([0-9]\)$/\1\2/p')
  [ -z "$found" ] || architecture=$found-real
fi
[ -n "$architecture" ] || [ "${1:-}" = --gpu ] || architecture=90-real
case $architecture in 90-real) architecture=90a-real ;; esac
echo "$architecture"
