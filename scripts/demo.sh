#!/bin/sh
# A short tour: each command is shown as a user would type it, then run.
set -eu
imago=$1
show() {
  echo "\$ imago $*"
  "$imago" "$@"
  echo
}
show doctor
show dtypes
