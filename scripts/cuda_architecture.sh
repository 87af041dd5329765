#!/bin/sh
# Prints the architecture to compile CUDA code for: IMAGO_CUDA_ARCHITECTURES, else that of the GPU here, else Hopper.
set -eu
architecture=${IMAGO_CUDA_ARCHITECTURES:-}
if [ -z "$architecture" ] && command -v nvidia-smi >/dev/null; then
  found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
  [ -z "$found" ] || architecture=$found-real
fi
case "${architecture:-90-real}" in 90-real) architecture=90a-real ;; esac
echo "$architecture"
