#!/usr/bin/env bash
# Runs the commands of README.md and some pages of docs as they stand: every block fenced with "sh", page by page, in an
# empty folder. Those of docs/serve.md ask a server that is started for them, and must be answered well. A block fenced with "sh not run: REASON" is listed instead, one with "json FILE" becomes that
# file, and each line of one with "output" must be printed by the commands, but for its numbers, which machines differ in.
#
#   commands_test.sh SOURCE-FOLDER PROGRAM
#
# What the pages take for granted is put there first: imago on PATH, a model of random weights under the name of the one
# from Hugging Face, and one in place of the bundled model where the checkout lacks it.
set -euo pipefail
source=$1 program=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/home"
ln -s "$program" "$work/bin/imago"
export PATH="$work/bin:$PATH" HOME="$work/home"

imago synth "$work/stand-in.gguf" --type f16 --width 256 --blocks 2 --feed-forward 512 --heads 4 --kv-heads 2 \
  --vocabulary 512 --ctx 512 -q
[ -e "$source/models/imago-20m.gguf" ] || export IMAGO_MODEL="$work/stand-in.gguf"

# blocks PAGE: the commands, each preceded by a line that shows it.
blocks() {
  awk '
    /^```sh$/      { inside = 1; next }
    /^```json ./    { print "cat > " $2 " <<\x27JSON\x27"; json = 1; next }
    /^```$/ && json { print "JSON"; json = 0; next }
    json            { print; next }
    /^```sh not run: / { print "not run, " substr($0, 16) > "/dev/stderr"; next }
    /^```sh/       { print FILENAME ": line " FNR ": a fence that is neither \"sh\" nor \"sh not run: REASON\"" > "/dev/stderr"; exit 1 }
    /^```/         { inside = 0; next }
    inside         { print; ++lines }
    END            { if (lines == 0) exit 1 }' "$1"
}

# Lines with numbers as N, and one space where there are several.
masked() { sed -E 's/[0-9]+([.,][0-9]+)*(e[-+][0-9]+)?/N/g; s/ +/ /g'; }
outputs() { awk '/^```output$/ { inside = 1; next } /^```/ { inside = 0 } inside && NF' "$1" | masked; }

pages=(README.md docs/guide.md docs/networks.md docs/model-networks.md docs/embeddings.md)
port=
if command -v curl >/dev/null; then
  pages+=(docs/serve.md)
  imago serve "$work/stand-in.gguf" --port 0 -t 1 2>"$work/serve.log" &
  server=$!
  trap 'kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
  until grep -q 'is ready' "$work/serve.log"; do
    kill -0 "$server" || { cat "$work/serve.log"; exit 1; }
    sleep 0.1
  done
  port=$(sed -n 's|^listening on http://127.0.0.1:||p' "$work/serve.log")
else
  echo "curl is not here: docs/serve.md is left out"
fi

failed=0
for page in "${pages[@]}"; do
  echo "== $page"
  folder=$(mktemp -d -p "$work")
  (cd "$folder" && imago convert "$work/stand-in.gguf" SmolLM2-135M-Instruct -q >/dev/null)
  { echo 'set -e'; blocks "$source/$page"; } |
    sed "s|localhost:8080|127.0.0.1:$port|g; s|^curl |curl -sSf |" >"$folder.sh" || { echo "$page: no commands, or a fence that is wrong"; exit 1; }
  if ! (cd "$folder" && bash -v "$folder.sh") >"$folder.log" 2>&1 </dev/null; then
    failed=1
    tail -n 25 "$folder.log"
    echo "$page: a command fails; it is the last one shown above"
  else
    echo "$(grep -c . "$folder.sh") lines were run"
  fi
  while IFS= read -r line; do
    masked <"$folder.log" | grep -qxF -- "$line" && continue
    failed=1
    echo "$page: no command prints '$line', where N is any number"
  done < <(outputs "$source/$page")
done
exit $failed
