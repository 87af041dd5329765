#!/bin/sh
# Builds and runs the consumer with nothing but a compiler and pkg-config.
#
#   pkgconfig.sh CXX PKGCONFIG-FOLDER PROGRAM
set -eu
export PKG_CONFIG_PATH="$2"
# shellcheck disable=SC2046  # flags are words
"$1" -std=c++20 $(pkg-config --cflags imago) "$(dirname "$0")/main.cpp" $(pkg-config --libs imago) -o "$3"
"$3"
