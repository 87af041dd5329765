#!/usr/bin/env bash
# Models of published sizes with random weights: prompt and generation of imago bench, beside llama-bench if there is one,
# in turns on the same files. Each file is written, measured and removed; the largest takes 4 GB.
#
#   scripts/bench_models.sh [MODEL:BLOCKS ...]
#
# LLAMA_BENCH: the program of llama.cpp to compare with. TYPE: of the matrices (default: q4_0). TURNS: how often both are
# measured (default: 3). PROMPT, TOKENS, THREADS: default 512, 64, 2. FIRST: a command in front of each, such as nice.
set -euo pipefail
cd "$(dirname "$0")/.."
imago=${BUILD:-build}/bin/imago
models=("$@")
[ $# -ne 0 ] || models=(llama:14 qwen3_moe:6 qwen3_5_moe:8 gpt_oss_20b:6 olmoe:16 lfm2_moe_8b:12 lfm2_1.2b:16
                        mamba2_2.7b:24 mamba_2.8b:24 gemma3_1b:26)
prompt=${PROMPT:-512} tokens=${TOKENS:-64} threads=${THREADS:-2}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The numbers of a key in JSON, on one line.
numbers() { grep -o "\"$1\": *[0-9.]*" | sed 's/.*: *//' | xargs printf ' %8.1f'; }

for one in "${models[@]}"; do
  file=$folder/model.gguf
  "$imago" synth "$file" --like "${one%:*}" --blocks "${one#*:}" --vocabulary 32000 --type "${TYPE:-q4_0}" -q
  echo "$one, $("$imago" inspect "$file" | sed -n 's/^each token uses *//p')"
  for _ in $(seq "${TURNS:-3}"); do
    # shellcheck disable=SC2086  # FIRST is several words
    ours=$(${FIRST:-} "$imago" bench "$file" -p "$prompt" -n "$tokens" -r 1 -t "$threads" --json)
    echo "  imago  pp$prompt, tg$tokens:$(numbers tokens_per_second <<<"$ours")  GB/s:$(numbers gb_per_s <<<"$ours")"
    [ -n "${LLAMA_BENCH:-}" ] || continue
    # shellcheck disable=SC2086
    theirs=$(${FIRST:-} "$LLAMA_BENCH" -m "$file" -p "$prompt" -n "$tokens" -r 1 -t "$threads" -o json 2>/dev/null)
    echo "  llama  pp$prompt, tg$tokens:$(numbers avg_ts <<<"$theirs")"
  done
done
