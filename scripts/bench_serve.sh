#!/usr/bin/env bash
# imago serve under load, beside llama-server if there is one: tokens per second and time to the first token with 1, 4, 16
# and 32 clients, in turns on the same file.
#
#   scripts/bench_serve.sh MODEL.gguf [OPTION of imago_bench_serve ...]
#
# LLAMA_SERVER: the program of llama.cpp to compare with. SERVE_OPTIONS, LLAMA_OPTIONS: more options for each. TURNS: how
# often both are measured (default: 3).
set -euo pipefail
cd "$(dirname "$0")/.."
model=${1:?usage: scripts/bench_serve.sh MODEL.gguf [OPTION ...]}
shift
build=${BUILD:-build}
port=$((20000 + RANDOM % 20000))

# measure NAME COMMAND...: starts a server on $port, loads it, ends it.
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true' EXIT
measure() {
  local name=$1 log
  shift
  log=$(mktemp)
  "$@" >"$log" 2>&1 &
  server=$!
  for _ in $(seq 600); do
    curl -sf -o /dev/null "http://127.0.0.1:$port/health" && break
    kill -0 "$server" 2>/dev/null || { cat "$log" >&2; exit 1; }
    sleep 0.1
  done
  echo "== $name"
  "$build/bench/imago_bench_serve" "http://127.0.0.1:$port" "${load[@]}" || true  # it has said which replies were not whole
  kill -TERM "$server"
  wait "$server" || true
  server=
  rm -f "$log"
}

load=("$@")
for turn in $(seq "${TURNS:-3}"); do
  echo "turn $turn"
  # shellcheck disable=SC2086  # options are several words
  measure imago "$build/bin/imago" serve "$model" --port $port -q -c 4096 ${SERVE_OPTIONS:-}
  if [ -n "${LLAMA_SERVER:-}" ]; then
    # shellcheck disable=SC2086
    measure llama-server "$LLAMA_SERVER" -m "$model" --port $port -np 32 -c 131072 --no-webui ${LLAMA_OPTIONS:-}
  fi
done
